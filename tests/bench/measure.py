"""One system through every case: putting, end to end with one and two workers, idle."""

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import redis

from dispatcher import Dispatcher
from shared.db import prepare
from shared.models import SkillInstall
from shared.skills import install
from tests.bench import environments, processes
from tests.bench.ours.library import SKILL
from tests.bench.peers import slots
from tests.bench.peers.slots import Slots
from tests.bench.servers import Servers, commands
from tests.bench.systems import BARE, System
from tests.services import MANAGEMENT_TOKEN, free_port

IDLE_CALLS = 200
DEADLINE_S = 240.0
WARM_UP_S = 60.0
LATENCIES = ("p50", "p95", "p99")

PRODUCT = {
    "SKILLS_MANAGEMENT_TOKEN": MANAGEMENT_TOKEN,
    "SKILLS_HANDLER_MODULES": "tests.bench.ours.handlers",
    "SKILLS_WORKER_QUEUES": "direct",
    "SKILLS_LOG_LEVEL": "warning",
}


LIVE = "SELECT EXISTS (SELECT FROM skill_executions WHERE ended IS NULL)"
ENDED = "SELECT count(*) FROM skill_executions WHERE ended IS NOT NULL"
TRANSACTIONS = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""
LAST = "SELECT extract(epoch FROM max(finished_at)) FROM skill_executions"


class Bench:
    """One system on the servers, with a database and a slots file of its own."""

    def __init__(self, system: System, servers: Servers, folder: Path) -> None:
        self.system = system
        self.servers = servers
        self.folder = folder
        self.slots = folder / "slots"
        self.url = asyncio.run(servers.databases.create())
        interpreter = environments.interpreter(system.peer) if system.peer else None
        self._command = processes.command(system.program, interpreter)
        self._spare = self._base = 0
        self.concurrency = system.slots
        self._workers: list[subprocess.Popen[bytes]] = []
        self._dispatchers: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        if self.product:
            asyncio.run(self._installed())
        if system.prepare:
            slots.make(self.slots, 1)
            env = {**self.env, "BENCH_PREPARE": "1"}
            processes.finished(self._command, env)

    @property
    def product(self) -> bool:
        """Tell whether this is the whole product."""
        return self.system.peer is None and self.system.name != BARE

    @property
    def env(self) -> dict[str, str]:
        """Return the variables of every program."""
        return {
            "BENCH_REDIS": self.servers.redis_url,
            "BENCH_POSTGRES": self.url,
            "BENCH_SLOTS": str(self.system.slots),
            "BENCH_PORT": str(self.port),
            slots.VARIABLE: str(self.slots),
            **self.system.variables,
        }

    def arguments(self, role: str, **more: object) -> list[str]:
        """Return a program's command line."""
        given = {"redis": self.servers.redis_url, "postgres": self.url, "slots": self.system.slots}
        options = [f"--{name}={value}" for name, value in {**given, **more}.items()]
        return [*self._command, role, *options]

    @contextmanager
    def serving(self, workers: int, count: int) -> Iterator[Slots]:
        """Have an empty Redis and so many warm workers."""
        slots.make(self.slots, count + 1)
        with redis.Redis.from_url(self.servers.redis_url) as client:
            client.flushall()
        log = self.folder / "log"
        opened = Slots(self.slots)
        try:
            self._start(workers, log)
            self._warm(opened, count, log)
            yield opened
        finally:
            processes.ended(*self._workers, *self._dispatchers)
            self._workers, self._dispatchers = [], []
            opened.close()

    def put(self, way: str, count: int, flight: int = 64) -> dict[str, Any]:
        """Run the producer."""
        more = {"way": way, "count": count, "flight": flight, "spare": self._spare}
        return processes.run(self.arguments("producer", **more), self.env)

    def groups(self) -> dict[str, set[int]]:
        """Return the processes whose CPU time is told apart."""
        return {
            "worker": processes.descendants(p.pid for p in self._workers),
            "dispatcher": processes.descendants(p.pid for p in self._dispatchers),
            "redis": set(self.servers.redis_pids),
            "postgres": set(self.servers.postgres_pids()),
        }

    def awaited(self, opened: Slots, count: int) -> float:
        """Wait for the last job; return when it was done (CLOCK_MONOTONIC)."""
        until = time.monotonic() + DEADLINE_S
        while (done := self._done(opened, count)) < count:
            if time.monotonic() > until:
                raise RuntimeError(f"{self.system.name}: {done} of {count} after {DEADLINE_S} s")
            time.sleep(0.02)
        if self.product:
            return asyncio.run(self._last())
        return max(start for start, _ in opened.starts(count))

    def transactions(self) -> int:
        """Return how many transactions the database has seen: a statement each, but for a few.

        Postgres counts a session's at most once a second.
        """
        time.sleep(1.2)
        return int(asyncio.run(self._asked(TRANSACTIONS)))

    def close(self) -> None:
        """Leave nothing behind."""
        asyncio.run(self.servers.databases.drop(self.url))

    async def install(self, dispatcher: Dispatcher, handler: str) -> None:
        """Install a skill of a handler's name, and tell everybody."""
        asked = SkillInstall(name=handler, handler_code=handler)
        await install(dispatcher.pool, asked, {}, "bench")
        await dispatcher.registry.changed()

    def _start(self, workers: int, log: Path) -> None:
        argv, env = self.arguments("worker"), self.env
        if self.product:
            argv = processes.command("worker", None)
            env = {
                **env, **PRODUCT, "SKILLS_DATABASE_URL": self.url,
                "SKILLS_REDIS_URL": self.servers.redis_url,
                "SKILLS_DATA_DIR": str(self.folder / "data"),
                "SKILLS_WORKER_CONCURRENCY": str(self.concurrency),
                "SKILLS_HTTP_PORT": str(self.port),
            }  # fmt: skip
        self._workers = [processes.start(argv, env, log) for _ in range(workers)]
        if self.system.dispatcher:
            dispatcher = processes.command("dispatcher", None)
            self._dispatchers = [processes.start(dispatcher, env, log)]

    def _warm(self, opened: Slots, count: int, log: Path) -> None:
        """Wait until a job runs; its slot is the last one, which is not counted."""
        until, tried = time.monotonic() + WARM_UP_S, ""
        self._spare = count
        while opened.starts(count + 1)[count][0] == 0:
            for process in (*self._workers, *self._dispatchers):
                if process.poll() is not None:
                    raise RuntimeError(f"{self.system.name}: {log.read_text()[-2000:]}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.system.name}: no worker after {WARM_UP_S} s. {tried}")
            try:
                processes.run(self.arguments("producer", spare=count), self.env)
                time.sleep(0.3)
            except RuntimeError as error:
                tried = str(error)
                time.sleep(0.2)
        self.drained()
        self._base = int(asyncio.run(self._asked(ENDED))) if self.product else 0

    def drained(self) -> None:
        """Wait until the product has nothing under way, or the sweep would ring for it later."""
        until = time.monotonic() + DEADLINE_S
        while self.product and asyncio.run(self._asked(LIVE)):
            if time.monotonic() > until:
                raise RuntimeError(f"{self.system.name} does not drain")
            time.sleep(0.05)

    def _done(self, opened: Slots, count: int) -> int:
        if not self.product:
            return opened.done(count)
        return int(asyncio.run(self._asked(ENDED))) - self._base - 1  # the warm call's

    async def _installed(self) -> None:
        pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1, init=prepare)
        asked = SkillInstall(name=SKILL, handler_code="bench-noop")
        await install(pool, asked, {}, "bench")
        await pool.close()

    async def _last(self) -> float:
        moment = float(await self._asked(LAST))
        return moment - time.time() + time.monotonic()

    async def _asked(self, statement: str) -> Any:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p95 and p99 of milliseconds."""
    cuts = statistics.quantiles(values, n=100)
    return {name: round(cuts[at], 2) for name, at in zip(LATENCIES, (49, 94, 98), strict=True)}


@contextmanager
def bench(system: System, servers: Servers) -> Iterator[Bench]:
    """Give a system's bench, and take it away."""
    with tempfile.TemporaryDirectory() as folder:
        made = Bench(system, servers, Path(folder))
        try:
            yield made
        finally:
            made.close()


def measured(system: System, servers: Servers, scale: float) -> dict[str, Any]:
    """Return a system's figures of one round; ``scale`` shortens every case."""
    count, few = max(50, round(system.many * scale)), max(20, round(min(1000, system.many) * scale))
    figures: dict[str, Any] = {}
    with bench(system, servers) as made:
        for workers in (1, 2):
            with made.serving(workers, count) as opened:
                figures |= through(made, opened, count, workers)
        with made.serving(1, count):
            for way, number in (("one", few), ("many", count)):
                if way in system.ways:
                    figures[f"put_{way}"] = round(number / made.put(way, number)["seconds"])
                    made.drained()
        calls = max(20, round(IDLE_CALLS * scale))
        if "one" in system.ways:
            with made.serving(1, calls) as opened:
                found = made.put("idle", calls, 1)
                made.awaited(opened, calls)
                waits = [
                    (start - call) * 1000
                    for (start, _), call in zip(opened.starts(calls), found["calls"], strict=True)
                ]
                figures["idle_ms"] = percentiles(waits)
    return figures


def through(made: Bench, opened: Slots, count: int, workers: int) -> dict[str, Any]:
    """Put jobs as fast as the system can and see them done; count what it takes."""
    asked, committed = commands(made.servers.redis_url), made.transactions()
    before = {name: processes.cpu_s(pids) for name, pids in made.groups().items()}
    found = made.put(made.system.fast, count)
    last = made.awaited(opened, count)
    used: Mapping[str, float] = {
        name: processes.cpu_s(pids) - before[name] for name, pids in made.groups().items()
    }
    calls = commands(made.servers.redis_url) - asked
    committed = made.transactions() - committed
    runs = [n for _, n in opened.starts(count)]
    figures: dict[str, Any] = {
        f"through_{workers}": round(count / (last - found["began"])),
        f"lost_{workers}": sum(n == 0 for n in runs),
        f"doubled_{workers}": sum(n > 1 for n in runs),
    }
    if workers == 1:
        figures["put_fast"] = round(count / found["seconds"])
        figures["redis_commands"] = round(calls / count, 2)
        figures["statements"] = round(committed / count, 3)
        figures["cpu_us"] = {
            "producer": round(found["cpu"] * 1e6 / count),
            **{name: round(seconds * 1e6 / count) for name, seconds in used.items()},
        }
    return figures
