"""The event "this execution reached an end": said by workers, waited for by dispatchers.

An event carries ids and nothing else. A missed one costs at most the five seconds to the next
safety read, which covers all waiters of a process at once.
"""

import asyncio
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import structlog
from redis.asyncio import Redis

from shared import history
from shared.db import Pool
from shared.errors import Unavailable
from shared.redis import AWAY, FINISHED_CHANNEL, Listener
from shared.tasks import end

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger(__name__)

SAFETY_READ_S = 5.0


async def publish_finished(redis: Redis, ids: Sequence[UUID]) -> None:
    """Say that these executions reached an end; a Redis that is away is only logged."""
    if not ids:
        return
    try:
        await redis.publish(FINISHED_CHANNEL, " ".join(map(str, ids)))
    except AWAY as error:
        log.warning("events.publish.failed", error=type(error).__name__, executions=len(ids))


class Waiters:
    """Everybody in this process who waits for an execution."""

    def __init__(self, pool: "Pool[asyncpg.Record]", listener: Listener) -> None:
        self._pool = pool
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        listener.on(FINISHED_CHANNEL, self._heard)
        listener.on_state(self._hearing)

    async def start(self) -> None:
        """Begin the safety reads."""
        self._task = asyncio.create_task(self._watch(), name="waiters-safety-read")

    async def stop(self) -> None:
        """End the safety reads and wake everybody, who then read what there is."""
        if self._task:
            await end(self._task)
        self.wake_all()

    def wake_all(self) -> None:
        """Wake everybody; whose execution has not ended may go on waiting."""
        self._wake(list(self._waiting))

    @contextmanager
    def expecting(self, execution_id: UUID) -> "Iterator[asyncio.Event]":
        """Give the event that is set when the execution may have ended.

        Enter before the row is read (or enqueued), so that no ending falls in between.
        """
        event = asyncio.Event()
        self._waiting.setdefault(execution_id, set()).add(event)
        try:
            yield event
        finally:
            events = self._waiting.get(execution_id, set())
            events.discard(event)
            if not events:
                self._waiting.pop(execution_id, None)

    async def check(self) -> None:
        """Wake whoever's execution has ended, by one read for all."""
        if self._waiting:
            self._wake(await history.finished(self._pool, list(self._waiting)))

    async def _heard(self, _: str, text: str) -> None:
        if self._waiting:
            with suppress(ValueError):
                self._wake([UUID(part) for part in text.split()])

    async def _hearing(self, hearing: bool) -> None:
        if hearing:
            with suppress(Unavailable):
                await self.check()

    def _wake(self, ids: Sequence[UUID]) -> None:
        for execution_id in ids:
            for event in self._waiting.get(execution_id, ()):
                event.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SAFETY_READ_S)
            try:
                await self.check()
            except Exception as error:
                log.warning("events.safety_read.failed", error=type(error).__name__)
