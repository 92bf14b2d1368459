"""One dispatcher in this process and workers as processes, on the services of the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from redis.asyncio import Redis

from dispatcher.caller import LIBRARY
from dispatcher.dispatcher import Dispatcher
from dispatcher.submission import Submission
from shared.models import SubmitRequest
from shared.redis import queue_key
from shared.settings import Settings
from shared.states import Status
from tests.conftest import SpawnWorker
from tests.factories import SPECIMENS, has_status, install, make_settings, redis_to, row
from tests.services import Room
from tests.signals import until

SpawnSpecimens = Callable[..., Awaitable[Room]]

QUICK = {
    "SKILLS_HANDLER_MODULES": f"worker.samples,{SPECIMENS}",
    "SKILLS_WORKER_QUEUES": "direct",
    "SKILLS_WORKER_LEASE_MS": "2000",
    "SKILLS_WORKER_SWEEP_MS": "200",
    "SKILLS_WORKER_POLL_MS": "100",
}
"""A worker that notices things soon, and needs no Docker."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate handler is given: where it notes that it runs, and what lets it go."""

    log: Path
    open: Path

    @property
    def input(self) -> dict[str, Any]:
        """Return the input for it."""
        return {"log": str(self.log), "open": str(self.open)}

    def lines(self) -> list[str]:
        """Return what it has noted."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def noted(self, *lines: str) -> None:
        """Wait until it has noted exactly these lines."""

        async def there() -> bool:
            return self.lines() == list(lines)

        await until(there, f"the gate notes {lines}, has {self.lines()}", deadline_s=30)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate-log", tmp_path / "gate-open")
    yield made
    made.open.touch()


@pytest.fixture
def settings(database_url: str, redis_url: str) -> Settings:
    return make_settings(database_url, redis_url)


@dataclass(frozen=True, slots=True)
class Desk:
    """A dispatcher, and what tests ask of it most."""

    dispatcher: Dispatcher

    async def install(self, name: str, **fields: Any) -> None:
        """Install a skill and tell everybody."""
        await install(self.dispatcher.pool, name, **fields)
        await self.dispatcher.registry.changed()

    async def send(
        self,
        skill: str,
        input: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        wait_s: float | None = 0,
        **fields: Any,
    ) -> Submission:
        """Submit; by default without waiting."""
        request = SubmitRequest(skill_name=skill, input=dict(input or {}), **fields)
        return await self.dispatcher.accept(request, LIBRARY, key, wait_s)

    async def forget(self) -> None:
        """Throw the queue away, for tests that leave something in it on purpose."""
        await self.dispatcher.redis.delete(queue_key("direct"))

    async def row(self, execution_id: UUID) -> Mapping[str, Any]:
        """Return the row as it stands."""
        return await row(self.dispatcher.pool, execution_id)

    async def reaches(self, execution_id: UUID, *states: Status) -> Mapping[str, Any]:
        """Wait until the row has one of the states, any terminal one by default."""
        found = await until(
            lambda: has_status(self.dispatcher.pool, execution_id, *states),
            f"{execution_id} reaches {states or 'its end'}",
            deadline_s=30,
        )
        assert found is not None
        return found


@asynccontextmanager
async def desk_on(settings: Settings) -> AsyncIterator[Desk]:
    """Open a dispatcher with a skill for every specimen."""
    async with Dispatcher.open(settings) as dispatcher:
        yield Desk(dispatcher)


@pytest.fixture
async def desk(redis_keeps_nothing: None, settings: Settings) -> AsyncIterator[Desk]:
    async with desk_on(settings) as made:
        for name in ("echo", "told", "gate", "gate-once", "flaky", "flaky-once", "dropped"):
            await install(made.dispatcher.pool, name)
        await made.dispatcher.registry.changed()
        yield made


async def drained(redis: Redis) -> None:
    """Wait until the queue is empty: a row has ended a moment before its entry is removed."""

    async def empty() -> bool:
        return int(await redis.zcard(queue_key("direct"))) == 0

    await until(empty, "the queue is empty")


@pytest.fixture
async def specimens(
    spawn_worker: SpawnWorker, rooms: list[Room], redis_url: str
) -> AsyncIterator[SpawnSpecimens]:
    """Give a function that starts a worker with the specimens; let those left finish at the end."""

    async def start(**variables: str) -> Room:
        return await spawn_worker(**{**QUICK, **variables})

    yield start
    if any(room.name == "worker" and room.process.poll() is None for room in rooms):
        async with redis_to(redis_url) as redis:
            await drained(redis)


async def exited(worker: Room) -> int:
    """Return the exit status of a process that is about to end."""
    return await asyncio.to_thread(worker.wait)


def lines_of(worker: Room) -> list[dict[str, Any]]:
    """Return what a worker has logged."""
    return [json.loads(line) for line in worker.logged().splitlines()]
