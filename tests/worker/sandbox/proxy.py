"""A way to the engine that can be cut: the real engine behind it, real faults on the way."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK = 65_536
CREATE = b"/containers/create"


class Proxy:
    """Carries bytes between clients and the engine's socket until it is cut."""

    def __init__(self, engine_socket: str) -> None:
        self._engine_socket = engine_socket
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.host = ""
        self.loses_create_answers = False

    async def listen_unix(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path)
        self.host = f"unix://{path}"

    async def listen_tls(self, context: ssl.SSLContext) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.host = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def cut(self) -> None:
        """Close every connection and accept no more, as when the engine dies."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._engine_socket)
        self._writers |= {writer, up_writer}
        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(
                    self._carry(reader, up_writer, writer), self._carry(up_reader, writer, None)
                )
        finally:
            self._writers -= {writer, up_writer}
            writer.close()
            up_writer.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter | None,
    ) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
            if client is not None and self.loses_create_answers and CREATE in data:
                client.transport.abort()  # the engine has the request, the client no answer
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()


@asynccontextmanager
async def proxied(path: Path, engine_socket: str = "/var/run/docker.sock") -> AsyncIterator[Proxy]:
    """Give a proxy on a socket of its own."""
    proxy = Proxy(engine_socket)
    await proxy.listen_unix(path)
    try:
        yield proxy
    finally:
        await proxy.cut()


def certificates(folder: Path) -> None:
    """Make ca.pem, cert.pem and key.pem, good for both ends on 127.0.0.1."""
    run = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    run += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    run += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(run, check=True, capture_output=True)
    (folder / "ca.pem").write_bytes((folder / "cert.pem").read_bytes())


def server_context(folder: Path) -> ssl.SSLContext:
    """Return a server's side that also asks for the client's certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context
