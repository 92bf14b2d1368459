"""A wire between a client and a server that a test can cut, freeze, slow down and mend."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url

from tests.services import free_port

CHUNK = 65_536


class Wire:
    """Listens on the loopback address and passes bytes on to a server: a socket file, or a port."""

    def __init__(self, target: str | tuple[str, int]) -> None:
        self._target = target
        self.port = free_port()
        self.delay_s = 0.0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def mend(self) -> None:
        """Accept connections, let bytes flow as fast as they come."""
        self._flowing.set()
        self.delay_s = 0.0
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Refuse new connections and drop those there are, like a Redis that died."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def freeze(self) -> None:
        """Let nothing through and tell nobody, like a network that swallows packets."""
        self._flowing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            far_reader, far_writer = await self._connect()
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, far_writer))
                    group.create_task(self._pass(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


class Proxy(Wire):
    """The wire to the Redis of an address; ``url`` is its near end."""

    def __init__(self, target_url: str) -> None:
        target = parse_url(target_url)
        path = target.get("path")
        super().__init__(path or (target.get("host", "localhost"), target.get("port", 6379)))
        named = urlsplit(target_url).path if "host" in target else ""
        self.url = f"redis://127.0.0.1:{self.port}/{named.strip('/') or target.get('db', 0)}"


@asynccontextmanager
async def proxied(target_url: str) -> AsyncIterator[Proxy]:
    """Give a proxy that works at first."""
    proxy = Proxy(target_url)
    await proxy.mend()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            await proxy.cut()
