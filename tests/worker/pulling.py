"""A loop that pulls entries, and the desk where they arrive."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from arq.constants import in_progress_key_prefix, job_key_prefix
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared.queue import Entry
from shared.redis import queue_key
from shared.tasks import end
from tests.services import keys_without_ttl
from tests.signals import until
from worker.loop import QueueWorker
from worker.ticket import Limits, Ticket, Verdict, Work, unlimited

SLOW_POLL_S = 30.0
"""So slow that only the bell explains what happens soon."""


class Desk:
    """Where executions arrive: notes them, and holds them until told to let go."""

    def __init__(self) -> None:
        self.arrived: list[UUID] = []
        self.open = asyncio.Event()
        self.open.set()
        self.answer = True
        self.error: Exception | None = None
        self.running = 0
        self.peak = 0

    async def claim(self, tickets: Sequence[Ticket]) -> list[Work | Verdict]:
        if not self.answer:
            self.arrived += [ticket.execution_id for ticket in tickets]
            return [Verdict.PASS_ON for _ in tickets]
        return [self.execute(ticket.execution_id) for ticket in tickets]

    async def execute(self, execution_id: UUID) -> UUID:
        self.arrived.append(execution_id)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        if self.error:
            raise self.error
        return execution_id

    async def has(self, *ids: UUID) -> None:
        async def all_there() -> bool:
            return set(ids) <= set(self.arrived)

        await until(all_there, f"{len(ids)} arrive")


@asynccontextmanager
async def pulling(
    redis: Redis,
    desk: Desk,
    *,
    slots: int = 4,
    poll_s: float = SLOW_POLL_S,
    lease_s: float = 10.0,
    limits: Limits = unlimited,
) -> AsyncIterator[QueueWorker]:
    worker = QueueWorker(
        redis,
        "direct",
        slots,
        poll_s,
        desk.claim,
        worker_id=f"worker-{uuid7()}",
        lease_s=lease_s,
        limits=limits,
    )
    task = asyncio.create_task(worker.main())
    try:
        yield worker
    finally:
        desk.open.set()
        await end(task)
        await asyncio.gather(*worker.tasks.values(), return_exceptions=True)


def entry(**changes: Any) -> Entry:
    fields: dict[str, Any] = {"execution_id": uuid7(), "attempt": 0}
    return Entry(**{**fields, "queue": "direct", "priority": "normal", **changes})


async def drained(redis: Redis) -> None:
    async def empty() -> bool:
        return int(await redis.zcard(queue_key("direct"))) == 0

    await until(empty, "the queue is empty")
    await until_gone(redis, job_key_prefix, in_progress_key_prefix)
    assert await keys_without_ttl(redis) == []


async def until_gone(redis: Redis, *prefixes: str) -> None:
    async def gone() -> bool:
        return not [key for prefix in prefixes for key in await redis.keys(f"{prefix}*")]

    await until(gone, "nothing of a job is left")
