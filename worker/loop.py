"""Pulling entries: arq's worker, woken by a bell, and not to be ended by a Redis that stumbles.

Everything that leans on arq's inside is in this module; arq is pinned exactly, and
``tests/contracts`` fails when what is used here changes:
``main``, ``_poll_iteration``, ``_pool``, ``heart_beat``, ``tasks``, ``job_counter``, ``max_jobs``,
``allow_pick_jobs``, ``in_progress_timeout_s``, ``start_jobs``, ``run_job``,
``finish_failed_job``, ``RetryJob``, ``Retry``,
``_release_sem_dec_counter_on_complete``.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import structlog
from arq.connections import ArqRedis
from arq.constants import abort_jobs_ss, in_progress_key_prefix
from arq.worker import Retry, RetryJob, Worker, func
from redis.asyncio import Redis

from shared.queue import FUNCTION, deserialize, serialize
from shared.redis import AWAY, bell_key, queue_key
from shared.tasks import end

if TYPE_CHECKING:
    from arq.typing import WorkerCoroutine

log = structlog.get_logger(__name__)

LEASE_S = 10.0
"""How long an entry stays this worker's without renewal."""
RENEW_S = LEASE_S / 3

READ_LIMIT = 10_000
"""Ids looked at in one poll: running ones stay in the set, so it must exceed the fleet's slots."""

BACKSTOP_S = 25 * 3600
"""arq's own time limit: above the longest that we allow, since ours records what happened."""

PASS_ON_S = (0.05, 0.25)
"""How long an entry that only another worker can run rests, so that this one does not spin."""

NOT_OURS = ("WRONGTYPE", "increment or decrement would overflow", "value is not an integer")
"""Redis's words for a key that holds what this program never writes."""

Execute = Callable[[UUID], Awaitable[bool]]
"""Runs an execution; False when the entry is for another worker."""


class QueueWorker(Worker):
    """Serves one queue with ``slots`` executions at once."""

    def __init__(
        self, redis: Redis, queue: str, slots: int, poll_s: float, execute: Execute
    ) -> None:
        async def entry(_: dict[Any, Any], execution_id: str) -> None:
            if not self.allow_pick_jobs:
                raise RetryJob  # picked while the stop came: another worker's, still queued
            with structlog.contextvars.bound_contextvars(execution_id=execution_id):
                if not await execute(UUID(execution_id)):
                    raise Retry(defer=random.uniform(*PASS_ON_S))  # noqa: S311  # no secret

        super().__init__(
            functions=[func(cast("WorkerCoroutine", entry), name=FUNCTION)],
            queue_name=queue_key(queue),
            redis_pool=ArqRedis(
                redis.connection_pool, job_serializer=serialize, job_deserializer=deserialize
            ),
            handle_signals=False,
            max_jobs=slots,
            job_timeout=BACKSTOP_S,
            keep_result=0,
            poll_delay=poll_s,
            queue_read_limit=READ_LIMIT,
            max_tries=1_000_000,  # the row counts attempts, not the entry
            job_serializer=serialize,
            job_deserializer=deserialize,
        )
        self.in_progress_timeout_s = LEASE_S
        self._bell = bell_key(queue)
        self._wake = asyncio.Event()
        self._renewed = 0.0

    async def main(self) -> None:
        """Poll when woken, at the latest after ``poll_s``; a Redis error only makes it wait."""
        ears = asyncio.create_task(self._listen(), name=f"bell-{self.queue_name}")
        failures = 0
        try:
            while True:
                try:
                    await self._poll_iteration()
                    failures = 0
                except Exception as error:
                    # Whatever one entry or one answer of Redis brings, the worker lives on.
                    failures += 1
                    log.warning(
                        "queue.poll.failed",
                        queue=self.queue_name,
                        error=type(error).__name__,
                        exc_info=not isinstance(error, AWAY),
                    )
                    await asyncio.sleep(backoff(failures))
                    continue
                await self._woken()
        finally:
            await end(ears, again_s=0.05)  # before whoever ends us loses patience

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        """Start all but what runs here already, which would cost three round trips each."""
        running = {job_id.encode() for job_id, task in self.tasks.items() if not task.done()}
        alien = [job_id for job_id in job_ids if not job_id.isascii()]
        if alien:
            log.warning("queue.alien_ids", queue=self.queue_name, count=len(alien))
            await self.pool.zrem(self.queue_name, *alien)
        for job_id in job_ids:
            if self.job_counter >= self.max_jobs:
                return
            if job_id.isascii() and job_id not in running:
                await self._start(job_id)

    async def _start(self, job_id: bytes) -> None:
        """Start one entry; arq keeps the slot of one whose start fails, so it is freed here."""
        try:
            await super().start_jobs([job_id])
        except Exception as error:
            super()._release_sem_dec_counter_on_complete()
            if isinstance(error, AWAY):
                raise
            await self._refuse(job_id.decode(), error)  # such as an infinite score

    async def run_job(self, job_id: str, score: int) -> None:
        """Run an entry; one that arq itself stumbles over goes, or it would come back for ever."""
        try:
            await super().run_job(job_id, score)
        except Exception as error:
            if isinstance(error, AWAY) and not any(words in str(error) for words in NOT_OURS):
                raise
            await self._refuse(job_id, error)

    async def _refuse(self, job_id: str, error: Exception) -> None:
        """Drop an entry and what belongs to it; the row, if there is one, is rung for again."""
        log.warning("queue.entry.refused", entry=job_id[:100], error=type(error).__name__)
        await self.pool.delete(abort_jobs_ss)  # unused here, but in every ending of arq's
        await self.finish_failed_job(job_id, None)

    def stop_picking(self) -> None:
        """Take nothing new; what runs goes on."""
        self.allow_pick_jobs = False

    async def heart_beat(self) -> None:
        """Renew the leases of what runs here, beside arq's own health record."""
        await super().heart_beat()
        now = self.loop.time()
        if self.tasks and now - self._renewed > RENEW_S:
            self._renewed = now
            pipeline = self.pool.pipeline(transaction=False)
            for job_id in self.tasks:
                pipeline.pexpire(in_progress_key_prefix + job_id, int(LEASE_S * 1000))
            await pipeline.execute()

    async def _woken(self) -> None:
        try:
            async with asyncio.timeout(self.poll_delay_s):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _listen(self) -> None:
        """Turn rings into wake-ups, as long as there is a free slot to wake for."""
        failures = 0
        while True:
            try:
                if self.allow_pick_jobs and self.job_counter < self.max_jobs:
                    if await cast("Awaitable[object]", self.pool.blpop([self._bell], timeout=1)):
                        self._wake.set()
                else:
                    await asyncio.sleep(0.05)
                failures = 0
            except AWAY:
                failures += 1
                await asyncio.sleep(backoff(failures))

    def _release_sem_dec_counter_on_complete(self) -> None:
        super()._release_sem_dec_counter_on_complete()
        self._wake.set()  # a slot is free: there may be more to take


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row, jittered, a second at most."""
    return random.uniform(0, min(1.0, 0.05 * 2.0 ** min(failures, 8)))  # noqa: S311  # no secret
