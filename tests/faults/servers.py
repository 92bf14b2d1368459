"""A Postgres and a Valkey of the suite's own, which it may kill, freeze and restart."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dispatcher.cli import embedded
from dispatcher.cli.children import Child, ChildFailed
from tests.requires import missing

RESTART_S = 30.0


@dataclass(slots=True)
class Server:
    """One server: its process as it is now, and how another is started on the same data."""

    child: Child
    begin: Callable[[], Child]

    async def kill(self) -> None:
        """End it like a power cut does."""
        process = self.child.process
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)

    async def stop(self) -> None:
        """Let it stop by itself."""
        await asyncio.to_thread(self.child.stop)

    async def start(self) -> None:
        """Start it on its data; what a killed one left behind may take a moment to go."""
        until = time.monotonic() + RESTART_S
        while True:
            try:
                self.child = await asyncio.to_thread(self.begin)
                return
            except ChildFailed:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        assert self.child.process is not None
        self.child.process.send_signal(number)


@dataclass(frozen=True, slots=True)
class Servers:
    """Both, and where they listen."""

    postgres: Server
    redis: Server
    database_url: str
    redis_url: str
    postgres_socket: str
    redis_socket: str


@asynccontextmanager
async def servers() -> AsyncIterator[Servers]:
    """Start both in a folder of their own, commits on disk; end them afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="skillfleet-faults-"))
    folder.chmod(0o711)
    try:
        sockets = embedded.socket_dir(folder)

        def postgres() -> Child:
            return embedded.start_postgres(folder, sockets, lock=None, durable=True)

        def redis() -> Child:
            return embedded.start_valkey(folder, sockets, lock=None, durable=True)

        try:
            first = Server(await asyncio.to_thread(postgres), postgres)
            second = Server(await asyncio.to_thread(redis), redis)
        except embedded.EmbeddedMissing as error:
            missing("services", str(error))
        try:
            yield Servers(
                first,
                second,
                embedded.database_url(sockets),
                embedded.redis_url(sockets),
                str(sockets / embedded.POSTGRES_SOCKET),
                str(sockets / embedded.VALKEY_SOCKET),
            )
        finally:
            for server in (first, second):
                server.signal(signal.SIGCONT)
                await server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
