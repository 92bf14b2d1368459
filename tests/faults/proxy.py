"""A wire between a client and a Redis that a test can cut, freeze and mend."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url

from tests.services import free_port

CHUNK = 65_536


class Proxy:
    """Listens on the loopback address and passes bytes on to the Redis of ``target_url``."""

    def __init__(self, target_url: str) -> None:
        self._target = parse_url(target_url)
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        path = urlsplit(target_url).path if "host" in self._target else ""
        number = path.strip("/") or self._target.get("db", 0)
        self.url = f"redis://127.0.0.1:{self._port}/{number}"

    async def mend(self) -> None:
        """Accept connections, let bytes flow."""
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

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
        if "path" in self._target:
            return await asyncio.open_unix_connection(self._target["path"])
        host, port = self._target.get("host", "localhost"), self._target.get("port", 6379)
        return await asyncio.open_connection(host, port)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


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
