"""Pulling entries: arq's worker with a loop of our own, which a stumbling Redis can't end.

Two pumps overlap Redis and Python: while the executions of one call are claimed and started, the
other asks for more. A bell wakes an idle worker at once; the poll is what finds what nobody rang
for. Everything that leans on arq's inside is in this module; arq is pinned exactly, and
``tests/contracts`` fails when what is used here changes: ``main``, ``_pool``, ``heart_beat``,
``tasks``, ``job_counter``, ``max_jobs``, ``allow_pick_jobs``, ``poll_delay_s``, ``jobs_complete``.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import structlog
from arq.connections import ArqRedis
from arq.constants import abort_jobs_ss
from arq.jobs import DeserializationError
from arq.worker import RetryJob, Worker, func
from redis.asyncio import Redis

from shared.errors import Unavailable
from shared.gates import Admission, Gates
from shared.queue import FUNCTION, deserialize, serialize
from shared.redis import AWAY, bell_key, queue_key
from shared.tasks import end
from worker.bell import Bell
from worker.lease import FOR_GOOD, Leased, Leases, Settled, Taken
from worker.ticket import Claim, Limits, Ticket, Verdict, Work, unlimited

if TYPE_CHECKING:
    from arq.typing import WorkerCoroutine

log = structlog.get_logger(__name__)

PUMPS = 2
"""More brings nothing: one batch is in Redis and Postgres while one is in Python."""

PASS_ON_MS = (50, 250)
"""How long an entry that can't be run here now rests, so that this worker does not spin."""

CYCLE_LIMIT_S = 60.0
"""A round that takes longer hangs; it is given up, and what it took goes back."""

STALLED_S = 30.0
"""Without a round for so long a worker counts as not consuming."""

HEARTBEAT_S = 1.0


class QueueWorker(Worker):
    """Serves one queue with ``slots`` executions at once."""

    def __init__(
        self,
        redis: Redis,
        queue: str,
        slots: int,
        poll_s: float,
        claim: Claim,
        *,
        worker_id: str,
        lease_s: float = 10.0,
        limits: Limits = unlimited,
    ) -> None:
        async def entry(_: dict[Any, Any], execution_id: str) -> None:
            raise RetryJob(execution_id)  # never called: the pumps run executions, arq's loop rests

        super().__init__(
            functions=[func(cast("WorkerCoroutine", entry), name=FUNCTION)],
            queue_name=queue_key(queue),
            redis_pool=ArqRedis(
                redis.connection_pool, job_serializer=serialize, job_deserializer=deserialize
            ),
            handle_signals=False,
            max_jobs=slots,
            keep_result=0,
            poll_delay=poll_s,
            job_serializer=serialize,
            job_deserializer=deserialize,
        )
        self._queue, self._worker_id = queue, worker_id
        self._bell_key = bell_key(queue)
        self._leases = Leases(redis, queue, worker_id, lease_s)
        self._gates = Gates(redis)
        self._limits = limits
        self._renew_s = lease_s / 4
        self._claim = claim
        self._bell = Bell()
        self._hungry = asyncio.Event()
        self._held: dict[bytes, tuple[str, ...]] = {}
        self._settled: list[Settled] = []
        self._ended: list[UUID] = []
        self._reserved = 0
        self._consumed_at = self.loop.time()
        self._failing = False

    async def main(self) -> None:
        """Pull until cancelled; whatever Redis or one entry brings, it goes on."""
        others = [
            asyncio.create_task(self._listen(), name=f"bell-{self.queue_name}"),
            asyncio.create_task(self._keep(), name=f"leases-{self.queue_name}"),
            *(
                asyncio.create_task(self._pump(None), name=f"pump-{n}-{self.queue_name}")
                for n in range(1, PUMPS)
            ),
        ]
        try:
            await self._pump(self.poll_delay_s)
        finally:
            await end(*others, again_s=0.05)  # before whoever ends us loses patience
            with suppress(*AWAY):
                await self._cycle(0)  # what ended last is made known

    @property
    def consuming(self) -> bool:
        """Tell whether the loop looks at its queue, or has no slot to look for."""
        return self.job_counter >= self.max_jobs or self.loop.time() < self._consumed_at + STALLED_S

    @property
    def ended(self) -> int:
        """Count the executions that were run here, whatever came of them."""
        return self.jobs_complete + self.jobs_failed

    def stop_picking(self) -> None:
        """Take nothing new; what runs goes on."""
        self.allow_pick_jobs = False

    async def _pump(self, poll_s: float | None) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(CYCLE_LIMIT_S):
                    wait_s = await self._round(poll_s)
                failures, self._failing = 0, False
            except Exception as error:
                failures += 1
                self._complain(error)
                await asyncio.sleep(backoff(failures))
                await self._recover()
                continue
            if wait_s != 0:
                await self._bell.wait(wait_s)

    async def _round(self, poll_s: float | None) -> float | None:
        """Settle, take, claim, start; return how long to rest, 0 when there is more to do."""
        wanted = self._free()
        self._reserved += wanted
        try:
            taken = await self._cycle(wanted)
            if taken.entries:
                await self._start(taken.entries)
        finally:
            self._reserved -= wanted
        if self._settled or (wanted and len(taken.entries) == wanted and self._free()):
            return 0
        if self._free():
            self._hungry.set()
        if poll_s is None or taken.next_s is None:
            return poll_s
        return max(0.001, min(poll_s, taken.next_s))

    def _free(self) -> int:
        """Return how many entries this pump may take: its share of the free slots."""
        if not self.allow_pick_jobs:
            return 0
        free = self.max_jobs - self.job_counter - self._reserved
        return max(0, min(free, -(-self.max_jobs // PUMPS)))

    async def _cycle(self, wanted: int) -> Taken:
        settled, self._settled = self._settled, []
        ended, self._ended = self._ended, []
        try:
            taken = await self._leases.cycle(wanted, settled, " ".join(map(str, ended)))
        except BaseException:
            # Settling twice does no harm, forgetting would.
            self._settled[:0] = settled
            self._ended[:0] = ended
            raise
        self._consumed_at = self.loop.time()
        return taken

    async def _start(self, entries: Sequence[Leased]) -> None:
        """Claim the executions of entries and start them."""
        if not self.allow_pick_jobs:  # the stop came meanwhile: they are another worker's
            for entry in entries:
                self._settle(entry.id, 0)
            return
        tickets = [ticket for entry in entries if (ticket := await self._ticket(entry))]
        self._held.update((ticket.entry_id, ()) for ticket in tickets)
        try:
            tickets = await self._admitted(tickets)
            answers = await self._claim(tickets) if tickets else ()
        except BaseException:
            for ticket in tickets:
                self._settle(ticket.entry_id, pass_on_ms())
            raise
        for ticket, answer in zip(tickets, answers, strict=True):
            if isinstance(answer, Verdict):
                later_ms = pass_on_ms() if answer is Verdict.PASS_ON else FOR_GOOD
                self._settle(ticket.entry_id, later_ms)
                continue
            self.job_counter += 1
            name = ticket.entry_id.decode()
            self.tasks[name] = self.loop.create_task(self._run(ticket, answer), name=name)

    async def _admitted(self, tickets: list[Ticket]) -> list[Ticket]:
        """Return those that no limit holds back; the others wait beside the queue."""
        limits = await self._limits(tickets)
        if not limits:
            return tickets
        # Noted first: whatever becomes of the call, their end opens the gates again.
        self._held.update((i, tuple(one.gate for one in passed)) for i, passed in limits.items())
        asked = [
            Admission(ticket.entry_id, ticket.turn, limits[ticket.entry_id])
            for ticket in tickets
            if ticket.entry_id in limits
        ]
        admitted = await self._gates.admit(self._queue, asked, self._worker_id, 4 * self._renew_s)
        for one in asked:
            if one.entry_id not in admitted:
                del self._held[one.entry_id]
        return [ticket for ticket in tickets if ticket.entry_id in self._held]

    async def _run(self, ticket: Ticket, work: Work) -> None:
        ended = None
        try:
            ended = await work
            self.jobs_complete += 1
        except Exception as error:
            self.jobs_failed += 1
            log.error(  # noqa: TRY400  # where Redis or Postgres is away its trace says nothing
                "execution.left",
                execution_id=str(ticket.execution_id),
                error=type(error).__name__,
                exc_info=not isinstance(error, AWAY),
                hint="Its row is still this worker's; the upkeep takes it up",
            )
        finally:
            self.job_counter -= 1
            self.tasks.pop(ticket.entry_id.decode(), None)
            if ended is not None:
                self._ended.append(ended)
            self._settle(ticket.entry_id)

    def _settle(self, entry_id: bytes, later_ms: int = FOR_GOOD) -> None:
        self._settled.append(Settled(entry_id, later_ms, self._held.pop(entry_id, ())))
        self._bell.ring()

    async def _ticket(self, entry: Leased) -> Ticket | None:
        """Read an entry; one that is not ours is dropped unread, or it would come back for ever."""
        try:
            job = deserialize(entry.body)
            if job["f"] != FUNCTION or len(job["a"]) != 1 or job["k"]:
                raise ValueError("not a job of ours")
            entry.id.decode()
            execution_id = UUID(job["a"][0])
            return Ticket(entry.id, entry.turn, execution_id, job.get("o", ""), job.get("s", ""))
        except (DeserializationError, ValueError, TypeError, AttributeError) as error:
            log.warning(
                "queue.entry.refused",
                entry=repr(entry.id[:100]),
                error=f"{type(error).__name__}: {error}",
            )
            await self.pool.delete(abort_jobs_ss)  # unused here, but in every ending of arq's
            self._settle(entry.id)
            return None

    async def _listen(self) -> None:
        """Turn rings into wake-ups, as long as there is a free slot to wake for."""
        failures = 0
        while True:
            await self._hungry.wait()
            try:
                rung = await cast("Awaitable[object]", self.pool.blpop([self._bell_key], timeout=2))
                failures = 0
            except AWAY:
                failures += 1
                await asyncio.sleep(backoff(failures))
                continue
            if not self._free():
                self._hungry.clear()
            if rung:
                self._bell.ring()

    async def _keep(self) -> None:
        """Renew the leases of what is held here, beside arq's own health record and cron."""
        renewed = self.loop.time()
        while True:
            await asyncio.sleep(min(HEARTBEAT_S, self._renew_s))
            try:
                await self.heart_beat()
                if self._held and self.loop.time() - renewed >= self._renew_s:
                    await self._leases.renew(self._held)
                    renewed = self.loop.time()
            except AWAY as error:
                log.debug("queue.renewal.failed", error=type(error).__name__)

    async def _recover(self) -> None:
        """Give back what a lost answer took, rather than let it lie until its lease runs out."""
        try:
            if count := await self._leases.reclaim([*self._held]):
                log.info("queue.given_back", queue=self.queue_name, entries=count)
        except AWAY as error:
            log.debug("queue.recovery.failed", error=type(error).__name__)

    def _complain(self, error: Exception) -> None:
        """Log a failed round; while Redis or Postgres stays away, the first one only."""
        away = isinstance(error, (*AWAY, Unavailable))
        if away and self._failing:
            return
        self._failing = away
        log.warning(
            "queue.round.failed",
            queue=self.queue_name,
            error=f"{type(error).__name__}: {error}",
            exc_info=not away,
            hint="It is tried again; if it stays, check SKILLS_REDIS_URL, SKILLS_DATABASE_URL "
            "and the servers",
        )


def pass_on_ms() -> int:
    """Return how long an entry rests that this worker can't run now, jittered."""
    return random.randint(*PASS_ON_MS)  # noqa: S311  # no secret


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row, jittered, a second at most."""
    return random.uniform(0, min(1.0, 0.05 * 2.0 ** min(failures, 8)))  # noqa: S311  # no secret
