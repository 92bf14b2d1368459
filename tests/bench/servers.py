"""The servers that everything in one run is measured against: one Postgres, one Redis on TCP."""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from dispatcher.cli import embedded
from tests.bench import processes
from tests.services import Databases, free_port, services

READY_S = 20.0


@dataclass(frozen=True, slots=True)
class Servers:
    """Their addresses, and their processes for the count of CPU time."""

    redis_url: str
    postgres_url: str
    databases: Databases
    redis_pids: frozenset[int]

    def postgres_pids(self) -> frozenset[int]:
        """Return the processes of Postgres as of now: each connection has one."""
        return processes.family("postgres")


@contextmanager
def servers() -> Iterator[Servers]:
    """Start them, Postgres with its commits on disk; end them afterwards."""
    with services(durable=True) as found, tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [
            str(embedded.valkey_program()), "--bind", "127.0.0.1", "--port", str(port),
            "--dir", folder, "--save", "", "--appendonly", "no",
        ]  # fmt: skip
        url = f"redis://127.0.0.1:{port}/0"
        process = processes.start(command, {}, Path(folder, "log"))
        databases = Databases(found.database_url)
        try:
            answering(url)
            yield Servers(url, found.database_url, databases, frozenset({process.pid}))
        finally:
            databases.close()
            processes.ended(process)


def answering(url: str) -> None:
    """Wait until Redis answers."""
    until = time.monotonic() + READY_S
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)


def commands(url: str) -> int:
    """Return how many commands Redis has run, those inside of scripts included."""
    with redis.Redis.from_url(url) as client:
        stats: Mapping[str, Mapping[str, int]] = client.info("commandstats")
    return sum(row["calls"] for row in stats.values())


def machine() -> str:
    """Return what this machine is."""
    cpus = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", cpus)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    size = round(int(memory[1]) / 2**20) if memory else 0
    return f"{cpus.count('processor')} CPUs ({model[1] if model else 'unknown'}), {size} GiB"
