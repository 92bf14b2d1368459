"""The real services that tests run against, and the rooms as processes.

Named by SKILLFLEET_TEST_DATABASE_URL and SKILLFLEET_TEST_REDIS_URL, else the embedded pair, started
once a session in a folder of its own.
"""

import asyncio
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx
import pytest
import redis
from redis.asyncio import Redis

from dispatcher.cli import embedded
from shared.migrate import migrate
from tests.requires import missing

DATABASE_VARIABLE = "SKILLFLEET_TEST_DATABASE_URL"
REDIS_VARIABLE = "SKILLFLEET_TEST_REDIS_URL"
MANAGEMENT_TOKEN = "management-token-of-the-tests"
READY_S = 40.0
STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Services:
    """Addresses of a Postgres where databases may be made, and of a Redis that may be emptied."""

    database_url: str
    redis_url: str


@contextmanager
def services(*, durable: bool = False) -> Iterator[Services]:
    """Give the services for a session; ``durable`` ones commit to disk, as benchmarks must."""
    database_url = os.environ.get(DATABASE_VARIABLE)
    redis_url = os.environ.get(REDIS_VARIABLE)
    if database_url and redis_url:
        yield Services(database_url, redis_url)
        return
    folder = Path(tempfile.mkdtemp(prefix="skillfleet-tests-"))
    try:
        started = embedded.start(
            folder, postgres=not database_url, valkey=not redis_url, durable=durable
        )
    except embedded.EmbeddedMissing as error:
        shutil.rmtree(folder)
        missing("services", str(error))
    try:
        yield Services(
            database_url or str(started.database_url), redis_url or str(started.redis_url)
        )
    finally:
        started.stop()
        shutil.rmtree(folder)


def on_database(url: str, name: str) -> str:
    """Return the URL with another database in it."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}")).replace(
        "postgresql:/?", "postgresql:///?"
    )


class Databases:
    """Makes databases by copying a migrated template: milliseconds instead of a migration each."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._template = f"skillfleet_template_{uuid.uuid4().hex[:12]}"
        asyncio.run(self._run(f'CREATE DATABASE "{self._template}"'))
        migrate(on_database(server_url, self._template))

    async def create(self) -> str:
        """Return the URL of a fresh, migrated database."""
        name = f"skillfleet_test_{uuid.uuid4().hex[:12]}"
        await self._run(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        return on_database(self._server_url, name)

    async def empty(self) -> str:
        """Return the URL of a database without a schema."""
        name = f"skillfleet_test_{uuid.uuid4().hex[:12]}"
        await self._run(f'CREATE DATABASE "{name}"')
        return on_database(self._server_url, name)

    async def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        name = urlsplit(url).path.lstrip("/")
        await self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Remove the template."""
        asyncio.run(self.drop(on_database(self._server_url, self._template)))

    async def _run(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def emptied(url: str) -> None:
    """Remove every key of a Redis database."""
    with redis.Redis.from_url(url) as client:
        client.flushdb()


async def keys_without_ttl(client: Redis) -> list[str]:
    """Return the keys that would stay for ever."""
    keys = [key async for key in client.scan_iter(count=1000)]
    return sorted([key.decode(errors="replace") for key in keys if await client.ttl(key) == -1])


def docker_answer() -> str | None:
    """Return why no Docker engine answers here; None when one does."""
    program = shutil.which("docker")
    if program is None:
        return "there is no docker command"
    try:
        done = subprocess.run(
            [program, "version", "--format", "{{.Server.APIVersion}}"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "docker version did not answer within 20 s"
    return None if done.returncode == 0 else done.stderr.strip() or "docker version failed"


@dataclass(slots=True)
class Room:
    """A dispatcher or worker as a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def kill(self) -> None:
        """End it like a power cut does."""
        self.process.kill()

    def terminate(self) -> None:
        """Ask it to stop."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, deadline_s: float = STOP_S) -> int:
        """Return its exit status; raise AssertionError with its log at the deadline."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {deadline_s} s\n{self.logged()}"
            ) from None

    def logged(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def spawn(room: str, env: Mapping[str, str], folder: Path) -> Room:
    """Start ``python -m room``; of our settings it sees ``env`` alone, whatever the shell has."""
    inherited = {k: v for k, v in os.environ.items() if not re.match(r"SKILLS_|DATA_DIR$", k)}
    log = folder / f"{room}-{uuid.uuid4().hex[:8]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", room],
            env={**inherited, "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    return Room(room, process, log, env=dict(env))


def free_port() -> int:
    """Return a port of the loopback address that is free, and that no connection takes.

    It lies below those that systems give to outgoing connections (32768 and up on Linux, 49152 by
    RFC 6335): one of them could take it while a test has its server stopped, or connect to itself.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    pytest.fail("none of 100 ports is free")


async def dispatcher_ready(room: Room) -> None:
    """Wait until ``/readyz`` is 200."""
    async with httpx.AsyncClient(base_url=room.url, trust_env=False, timeout=5) as client:
        await awaited(room, lambda: readyz(client))


async def readyz(client: httpx.AsyncClient) -> bool:
    """Tell whether the dispatcher says that it is ready."""
    try:
        return (await client.get("/readyz")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def worker_ready(room: Room, database_url: str) -> None:
    """Wait until the worker has written its presence."""
    connection = await asyncpg.connect(database_url)
    try:
        await awaited(room, lambda: present(connection, room.pid))
    finally:
        await connection.close()


async def present(connection: asyncpg.Connection, pid: int) -> bool:
    """Tell whether a worker of that process id says that it lives."""
    found: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM workers WHERE pid = $1 AND stopped_at IS NULL)", pid
    )
    return found


async def awaited(room: Room, ready: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a room; fail with its log when it ends or the deadline passes."""
    end = time.monotonic() + READY_S
    while not await ready():
        if room.process.poll() is not None:
            pytest.fail(f"{room.name} ended with {room.process.returncode}\n{room.logged()}")
        if time.monotonic() > end:
            pytest.fail(f"{room.name} was not ready within {READY_S} s\n{room.logged()}")
        await asyncio.sleep(0.02)
