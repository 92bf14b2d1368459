"""The rooms under faults: dispatchers and workers as processes, each on wires that can be cut."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from tests.faults.proxy import Wire
from tests.faults.servers import Servers
from tests.services import (
    MANAGEMENT_TOKEN,
    Room,
    dispatcher_ready,
    free_port,
    spawn,
    worker_ready,
)

DISPATCHERS, WORKERS = 2, 3
UNAVAILABLE = 4
"""The exit status of a room that can't reach what it needs to start: its supervisor's business."""

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""Debian's package libfaketime; without it no clock jumps."""

QUICK = {
    "SKILLS_MANAGEMENT_TOKEN": MANAGEMENT_TOKEN,
    "SKILLS_HANDLER_MODULES": "tests.faults.effects",
    "SKILLS_WORKER_QUEUES": "direct",
    "SKILLS_WORKER_LEASE_MS": "2000",
    "SKILLS_WORKER_SWEEP_MS": "200",
    "SKILLS_WORKER_GRACE_MS": "500",
    "SKILLS_LOG_FORMAT": "json",
}


class Cluster:
    """Who is there now. What the suite ends it starts again; what ends by itself is a fault."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.servers = servers
        self.folder = folder
        self.clock = folder / "clock"
        self.dispatchers: list[Room] = []
        self.workers: list[Room] = []
        self.ports = [free_port() for _ in range(DISPATCHERS)]
        self.wires = {
            f"{room}-{server}": Wire(target)
            for room in ("dispatcher", "worker")
            for server, target in (
                ("postgres", servers.postgres_socket),
                ("redis", servers.redis_socket),
            )
        }

    def addresses(self, room: str) -> dict[str, str]:
        """Return where the servers are for a room: behind its wires."""
        user = urlsplit(self.servers.database_url).username
        name = urlsplit(self.servers.database_url).path
        postgres, redis = (self.wires[f"{room}-{server}"].port for server in ("postgres", "redis"))
        return {
            "SKILLS_DATABASE_URL": f"postgresql://{user}@127.0.0.1:{postgres}{name}?sslmode=disable",
            "SKILLS_REDIS_URL": f"redis://127.0.0.1:{redis}/0",
        }

    async def dispatcher(self, place: int) -> Room:
        """Start the dispatcher of a place, on its port."""
        env = {
            **QUICK, **self.addresses("dispatcher"), "SKILLS_HTTP_PORT": str(self.ports[place]),
            "SKILLS_DATA_DIR": str(self.folder / "data"),
        }  # fmt: skip
        room = spawn("dispatcher", env, self.folder)
        room.url = f"http://127.0.0.1:{self.ports[place]}"
        return room

    async def worker(self, place: int) -> Room:
        """Start a worker; the first one's clock is the suite's to turn."""
        env = {
            **QUICK, **self.addresses("worker"), "SKILLS_DATA_DIR": str(self.folder / "data"),
            **(self.faked() if place == 0 else {}),
        }  # fmt: skip
        return spawn("worker", env, self.folder)

    def faked(self) -> dict[str, str]:
        """Return what turns a process's wall clock by what the file says; monotonic stays true."""
        if not FAKETIME.exists():
            return {}
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    async def begin(self) -> None:
        """Mend the wires, start everybody, wait until all are there."""
        self.turn_clock(0)
        for wire in self.wires.values():
            await wire.mend()
        self.dispatchers = [await self.dispatcher(n) for n in range(DISPATCHERS)]
        self.workers = [await self.worker(n) for n in range(WORKERS)]
        await self.there()

    async def there(self) -> None:
        """Wait until every room is ready."""
        for room in self.dispatchers:
            await dispatcher_ready(room)
        for room in self.workers:
            await worker_ready(room, self.servers.database_url)

    def turn_clock(self, seconds: int) -> None:
        """Set the first worker's wall clock so far off."""
        self.clock.write_text(f"{seconds:+d}s\n")

    async def replace(self, room: Room, number: signal.Signals) -> None:
        """End a room by a signal and start another in its place."""
        with suppress(ProcessLookupError):
            os.kill(room.pid, number)
        await asyncio.to_thread(room.wait)
        for rooms, start in ((self.dispatchers, self.dispatcher), (self.workers, self.worker)):
            if room in rooms:  # or its supervisor was first
                place = rooms.index(room)
                rooms[place] = await start(place)

    async def supervise(self) -> None:
        """Start again, until cancelled, what ended because a server was away at its start."""
        while True:
            for rooms, start in (
                (self.dispatchers, self.dispatcher), (self.workers, self.worker),
            ):  # fmt: skip
                for place, room in enumerate(rooms):
                    if room.process.poll() == UNAVAILABLE:
                        rooms[place] = await start(place)
            await asyncio.sleep(0.2)

    def dead(self) -> list[Room]:
        """Return the rooms that ended although nobody ended them."""
        rooms = [*self.dispatchers, *self.workers]
        return [room for room in rooms if room.process.poll() not in (None, UNAVAILABLE)]

    async def migrated(self) -> None:
        """Give the database its schema."""
        from shared.migrate import migrate

        await asyncio.to_thread(migrate, self.servers.database_url)

    async def pool(self) -> "asyncpg.Pool[asyncpg.Record]":
        """Return a pool of the suite's own, not behind a wire."""
        from shared.db import prepare

        made = await asyncpg.create_pool(
            self.servers.database_url, min_size=0, max_size=4, init=prepare
        )
        assert made is not None
        return made


@asynccontextmanager
async def cluster(servers: Servers, folder: Path) -> AsyncIterator[Cluster]:
    """Give a cluster whose rooms are ready, on a schema of this program."""
    made = Cluster(servers, folder)
    async with AsyncExitStack() as stack:
        for wire in made.wires.values():
            stack.push_async_callback(wire.cut)
        await made.migrated()
        try:
            await made.begin()
            yield made
        finally:
            for room in [*made.dispatchers, *made.workers]:
                with suppress(ProcessLookupError):
                    os.kill(room.pid, signal.SIGCONT)
                room.end()
