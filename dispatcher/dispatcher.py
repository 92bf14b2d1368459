"""The dispatcher: takes a request, commits the row, rings the queue, waits for the end.

Everything a face needs is here; faces only translate. Use it as a library in your own process::

    async with Dispatcher.open() as dispatcher:
        execution = await dispatcher.submit("file_read", {"path": "a.txt"}, api_key_id="key-1")
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any
from uuid import UUID

import asyncpg
import structlog
from redis.asyncio import Redis

from dispatcher import batches, intake
from dispatcher.caller import LIBRARY, Caller
from dispatcher.intake import Prepared
from dispatcher.limits import Limits
from dispatcher.offers import Offers
from dispatcher.reasons import Reasons
from dispatcher.submission import UNREADABLE, UNRUNG, Submission
from dispatcher.waits import CANCEL_WAIT_S, WAIT_MAX_S, default_wait, happens
from shared import cancels, db, history, migrate, skills
from shared.batcher import Batcher
from shared.cancels import Counts
from shared.db import Pool
from shared.errors import (
    AlreadyFinished,
    ErrorCode,
    IdentityConflict,
    NotFound,
    SkillfleetError,
    SwitchedOff,
    Unavailable,
)
from shared.events import Waiters
from shared.executions import Executions, Existing, NewExecution
from shared.history import Filter
from shared.models import SYSTEM, Execution, Skill, SubmitRequest
from shared.queue import Entry, Queue
from shared.redis import AWAY, Listener
from shared.redis import connect as connect_redis
from shared.registry import Registry
from shared.settings import Settings, load
from shared.snapshot import Snapshot
from shared.validators import Validators

log = structlog.get_logger(__name__)

RING_TIMEOUT_S = 2.0
"""How long a batch of submits tries to reach Redis before it leaves the ringing to the sweep."""


class Dispatcher:
    """Owns its pools; made by ``open``."""

    def __init__(self, settings: Settings, pool: "Pool[asyncpg.Record]", redis: Redis) -> None:
        self.settings = settings
        self.pool = pool
        self.redis = redis
        self.listener = Listener(redis)
        self.registry = Registry(pool, redis, self.listener)
        self.waiters = Waiters(pool, self.listener)
        self.executions = Executions(pool)
        self.validators = Validators()
        self.offers = Offers(pool)
        self.reasons = Reasons(pool, redis, self.registry, self.offers)
        self.queue = Queue(redis)
        self.limits = Limits(redis, self.queue, self.executions)
        self.hurried = False
        self._rings: Batcher[Entry, None] = Batcher(self._ring_all)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings | None = None) -> "AsyncIterator[Dispatcher]":
        """Connect, refuse an older schema, listen; close everything on the way out.

        Raises ConfigurationError, Unavailable or SchemaOutdated, each saying what to do.
        """
        settings = settings or load()
        redis = connect_redis(settings)
        pool = await db.connect(settings, name="skillfleet-dispatcher")
        try:
            await migrate.require(pool)
            self = cls(settings, pool, redis)
            await self.listener.start()
            await self.waiters.start()
            try:
                yield self
            finally:
                await self.waiters.stop()
                await self.listener.stop()
                await self.executions.drain()
        finally:
            await db.close(pool)
            await redis.aclose()

    async def submit(
        self,
        skill_name: str,
        input: dict[str, Any] | None = None,
        *,
        api_key_id: str = SYSTEM,
        idempotency_key: str | None = None,
        wait_s: float | None = None,
        **fields: Any,
    ) -> Execution:
        """Execute a skill and return the execution, finished if it ended within the wait.

        ``wait_s`` None waits for the time limit and five seconds, 0 not at all. ``fields`` are
        those of SubmitRequest (``session_id``, ``timeout_ms``, ``priority``, …).
        """
        request = SubmitRequest(
            skill_name=skill_name, input=input or {}, api_key_id=api_key_id, **fields
        )
        return (await self.accept(request, LIBRARY, idempotency_key, wait_s)).execution

    async def accept(
        self,
        request: SubmitRequest,
        caller: Caller,
        idempotency_key: str | None = None,
        wait_s: float | None = None,
        committed: "asyncio.Future[Sequence[UUID]] | None" = None,
    ) -> Submission:
        """Do what ``POST /executions`` does, for an authenticated caller.

        ``committed`` is given the id as soon as there is a new row, which is not so for a replay.
        Raises SwitchedOff, SkillNotFound, SkillDisabled, InvalidInput, PayloadTooLarge,
        RateLimited, QueueFull, IdentityConflict, or Unavailable before the commit; nothing after.
        """
        snapshot = await self.ready()
        prepared = self.prepare(snapshot, request, caller, idempotency_key)
        for refusal in (await self.limits.refusals(snapshot, [prepared])).values():
            raise refusal
        new, owner = prepared.new, prepared.new.api_key_id
        seconds = default_wait(prepared.limit_ms) if wait_s is None else min(wait_s, WAIT_MAX_S)
        # As long as anybody is expecting something, every event of the fleet is read.
        expected = self.waiters.expecting(new.id) if seconds > 0 else nullcontext(asyncio.Event())
        with expected as ended:
            made = await intake.commit(self.executions, new)
            if isinstance(made, Existing):
                return await self._replay(made, new, owner, seconds)
            if committed is not None:
                committed.set_result([new.id])
            warnings = await self._ring(prepared)
            if not warnings:
                try:
                    warnings = await self.offers.warnings(prepared.skill)
                    execution = await self._ending(ended, new.id, owner, seconds)
                except Unavailable:  # the row is safe; the caller must not think it is not
                    warnings = (*warnings, UNREADABLE)
                    execution = None
                if execution is not None:
                    return Submission(execution, warnings=warnings)
        reason = self.reasons.fresh(snapshot, prepared)
        return Submission(intake.pending(new, request, made, reason), warnings=warnings)

    async def ready(self) -> Snapshot:
        """Return the registry's snapshot; raise SwitchedOff while the master switch is off."""
        snapshot = await self.registry.snapshot()
        if not snapshot.settings.skills_enabled:
            raise SwitchedOff
        return snapshot

    def prepare(
        self, snapshot: Snapshot, request: SubmitRequest, caller: Caller, key: str | None
    ) -> Prepared:
        """Check a request and work out its row. Raises what ``accept`` does before the commit."""
        return intake.prepare(snapshot, request, caller, key, self.validators, self.settings)

    async def submit_many(
        self,
        requests: Sequence[Mapping[str, Any]],
        *,
        api_key_id: str = SYSTEM,
        wait_s: float = 0.0,
    ) -> "list[Execution | SkillfleetError]":
        """Execute many skills; return each one's execution or the error that it met, in order.

        Each request holds what ``submit`` takes: ``skill_name``, ``input``, ``idempotency_key``, …
        Returns once all have ended or ``wait_s`` is over.
        """
        items = [batches.item({"api_key_id": api_key_id, **r}, by_name=True) for r in requests]
        answers = await batches.accept(self, items, LIBRARY, wait_s)
        return [a if isinstance(a, SkillfleetError) else a.execution for a in answers]

    async def cancel(
        self,
        execution_id: UUID,
        owner: str | None = None,
        *,
        actor: str = LIBRARY.actor,
        wait_s: float | None = None,
    ) -> Execution:
        """Cancel an execution; return it as it ended, or still running after the wait.

        ``wait_s`` None gives a running one five seconds to end. Raises NotFound, or AlreadyFinished
        when it ended otherwise.
        """
        seconds = CANCEL_WAIT_S if wait_s is None else min(wait_s, WAIT_MAX_S)
        with self.waiters.expecting(execution_id) as ended:
            found = await cancels.cancel(self.pool, self.redis, execution_id, owner, actor)
            if found is None:
                found = await self.get(execution_id, owner)
            elif not found.finished:
                found = await self._ending(ended, execution_id, owner, seconds) or found
        if found.finished and found.error_code != ErrorCode.CANCELLED:
            raise AlreadyFinished(found.status)
        return found

    async def cancel_all(self, narrowed: Filter, *, actor: str = LIBRARY.actor) -> Counts:
        """Cancel whatever the filter leaves and has not ended; return how many that were."""
        return await cancels.cancel_all(self.pool, self.redis, narrowed, actor)

    async def wait(self, execution_id: UUID, seconds: float, owner: str | None = None) -> Execution:
        """Return the execution as soon as it has ended, or as it stands after ``seconds``."""
        with self.waiters.expecting(execution_id) as ended:
            execution = await self.get(execution_id, owner)
            if execution.finished:
                return execution
            return await self._ending(ended, execution_id, owner, seconds) or execution

    async def get(self, execution_id: UUID, owner: str | None = None) -> Execution:
        """Return the execution; raise NotFound when there is none of that id and owner."""
        found = await history.get(self.pool, execution_id, owner)
        if found is None:
            raise NotFound(f"Execution not found: {execution_id}")
        return found

    async def list(
        self, narrowed: Filter | None = None, *, limit: int = 50, before: UUID | None = None
    ) -> Sequence[Execution]:
        """Return executions, newest first; ``before`` is the last id of the page before."""
        return await history.page(self.pool, narrowed or Filter(), limit=limit, before=before)

    async def count(self, narrowed: Filter | None = None) -> int:
        """Count executions."""
        return await history.count(self.pool, narrowed or Filter())

    async def versions(self, name: str, api_key_id: str = SYSTEM) -> Sequence[Skill]:
        """Return the versions of a skill that an owner sees, highest first."""
        return (await self.registry.snapshot()).versions(name, api_key_id)

    async def unregister(
        self,
        name: str,
        version: str | None = None,
        *,
        api_key_id: str = SYSTEM,
        actor: str = LIBRARY.actor,
    ) -> int:
        """Remove an owner's skill, one version or all; return how many went. History stays.

        ``actor`` is who the audit says it was.
        """
        snapshot = await self.registry.snapshot()
        doomed = [
            skill
            for skill in snapshot.versions(name, api_key_id)
            if skill.api_key_id == api_key_id and version in (None, skill.version)
        ]
        removed = 0
        for skill in doomed:
            with suppress(NotFound):  # somebody else was faster
                await skills.remove(self.pool, skill.id, actor)
                removed += 1
        await self.registry.changed()
        return removed

    def hurry(self) -> None:
        """Answer everybody who waits with what there is: the process is about to go."""
        self.hurried = True
        self.waiters.wake_all()

    async def _ending(
        self, ended: asyncio.Event, execution_id: UUID, owner: str | None, seconds: float
    ) -> Execution | None:
        """Wait for the event and read the row; None when neither event nor end came in time.

        Whoever waits when the process is about to go is answered with the row as it stands.
        """
        execution = None
        if seconds <= 0:
            return None
        end = asyncio.get_running_loop().time() + min(seconds, WAIT_MAX_S)
        while self.hurried or await happens(ended, end - asyncio.get_running_loop().time()):
            ended.clear()
            execution = await self.get(execution_id, owner)
            if execution.finished or self.hurried:
                break
        return execution

    async def _replay(
        self, held: Existing, new: NewExecution, owner: str, seconds: float
    ) -> Submission:
        if held.digest != new.input_digest:
            raise IdentityConflict
        found = await self.wait(held.execution_id, seconds, owner)
        (found,) = await self.reasons.explained([found])
        return Submission(found, replayed=True)

    async def _ring(self, prepared: Prepared) -> tuple[dict[str, str], ...]:
        """Enqueue a committed row; a Redis that is away makes a warning, and the sweep rings."""
        try:
            await self._rings.submit(intake.entry(prepared))
        except AWAY as error:
            execution_id = str(prepared.new.id)
            log.warning("queue.ring.failed", execution_id=execution_id, error=type(error).__name__)
            return (UNRUNG,)
        return ()

    async def ring(self, made: Sequence[Prepared]) -> tuple[dict[str, str], ...]:
        """Enqueue rows committed together; warnings as for one."""
        try:
            await self._ring_all([intake.entry(prepared) for prepared in made])
        except AWAY as error:
            log.warning("queue.ring.failed", executions=len(made), error=type(error).__name__)
            return (UNRUNG,)
        return ()

    async def _ring_all(self, entries: Sequence[Entry]) -> Sequence[None]:
        async with asyncio.timeout(RING_TIMEOUT_S):
            await self.queue.put(entries)
        return [None] * len(entries)
