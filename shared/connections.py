"""Connections to Redis that send in the task which asks, and whose end is always a ConnectionError.

redis-py 5 sends through ``asyncio.wait_for``: a task for every command, and before Python 3.12 a
cancellation that meets its end is lost (python/cpython#86296). uvloop says with a RuntimeError that
a transport is closed already; nobody up the stack takes that for a server that is away.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as Gone
from redis.exceptions import TimeoutError as Late


class Steady(AbstractConnection):
    """What sending and reading mean for every kind of connection."""

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Send; raise redis-py's ConnectionError or TimeoutError, the connection closed."""
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        elif check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        if isinstance(command, str):
            command = command.encode()
        try:
            writer = self._writer
            if writer is None:
                raise ConnectionResetError("the connection was closed meanwhile")
            writer.writelines([command] if isinstance(command, bytes) else command)
            async with asyncio.timeout(self.socket_timeout):
                await writer.drain()
        except BaseException as error:
            await self.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise Late("Timeout writing to socket") from None
            if isinstance(error, OSError | RuntimeError):
                raise Gone(f"Error while writing to socket: {error}") from error
            raise

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read an answer; raise redis-py's errors and nothing else when the connection is gone."""
        try:
            return await super().read_response(*args, **kwargs)
        except RuntimeError as error:
            raise Gone(f"Error while reading from socket: {error}") from error


def steady(pool: ConnectionPool) -> None:
    """Have a pool make connections of this kind, over TCP, TLS, a socket file or Sentinel alike."""
    base = pool.connection_class
    pool.connection_class = type(f"Steady{base.__name__}", (Steady, base), {})
