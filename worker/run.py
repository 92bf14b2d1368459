"""One execution on this worker: claim, attempt, finish, announce."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import structlog

from shared import presence, stale
from shared.db import LOST
from shared.errors import ErrorCode, Unavailable
from shared.events import publish_finished
from shared.executions import Claim, Ending
from shared.queue import Entry
from shared.redis import AWAY
from shared.registry import Snapshot
from shared.schemas import Validator
from shared.states import Status
from worker import attempt, retry
from worker.context import Context
from worker.outcome import Outcome, failed
from worker.room import Room
from worker.workspace import Workspace

log = structlog.get_logger(__name__)


async def run_execution(room: Room, execution_id: UUID) -> bool:
    """Run the execution if it is there to be had; whoever else has the entry runs nothing.

    False when the entry should stay queued, for another worker that offers the handler.
    """
    snapshot = await room.registry.snapshot()
    if not snapshot.settings.skills_enabled:
        log.debug("run.switched_off")  # the sweep rings again once the switch is on
        return True
    if execution_id in room.held:
        log.debug("run.here_already")
        return True
    room.held.add(execution_id)
    try:
        claim = await room.executions.claim(execution_id, room.id)
        if claim is None:
            log.debug("run.not_ours")
            return not await for_another(room, execution_id)
        ending = await run_claim(room, claim, snapshot)
    finally:
        room.held.discard(execution_id)
    # Let go of before it is announced, and only once: the next attempt, which the announcement
    # rings for, may be taken up here at once and holds the same id.
    if ending is not None:
        await announced(room, claim, ending)
    return True


async def run_claim(room: Room, claim: Claim, snapshot: Snapshot) -> Ending | None:
    """Attempt and finish; None when the row was not ours any more. Whatever happens, it ends."""
    structlog.contextvars.bind_contextvars(skill=claim.skill_name, attempt=claim.attempt)
    log.info("execution.started", handler=claim.handler)
    began = asyncio.get_running_loop().time()
    try:
        outcome = await attempted(room, claim, snapshot)
    except Exception:
        log.exception("attempt.broken")
        outcome = failed(ErrorCode.INTERNAL, "The worker failed while it ran this execution")
    duration_ms = round((asyncio.get_running_loop().time() - began) * 1000)
    elsewhere = outcome.nothing_ran and await another_can(room, claim)
    ending = retry.decide(claim, outcome, duration_ms, elsewhere=elsewhere)
    if await finished(room, ending):
        return ending
    log.warning("execution.fenced", reason="another attempt has begun, or the row is gone")
    return None


async def attempted(room: Room, claim: Claim, snapshot: Snapshot) -> Outcome:
    """Run the attempt under its limit: the row's, else the run-time setting's."""
    handler = room.handlers[claim.handler]
    limit_ms = claim.timeout_ms or snapshot.settings.execution_timeout_ms
    skill = snapshot.by_id.get(claim.skill_id)
    schema: Validator | None = room.validators.of(skill, "output") if skill else None
    context = Context(
        execution_id=claim.id,
        attempt=claim.attempt,
        max_retries=claim.max_retries,
        api_key_id=claim.api_key_id,
        caller=claim.caller,
        session_id=claim.session_id,
        provider=claim.provider,
        model=claim.model,
        deadline=asyncio.get_running_loop().time() + limit_ms / 1000,
        log=structlog.get_logger("skill").bind(skill=claim.skill_name),
        settings=room.settings,
        workspace=Workspace(room.settings.data.dir, claim.api_key_id, room.settings.max.file_bytes),
        sandbox=room.sandbox,
    )
    return await attempt.run(handler, claim.input, context, schema, room.stopping)


async def announced(room: Room, claim: Claim, ending: Ending) -> None:
    """Say what became of it: to the waiters, or to the queue for the next attempt."""
    log.info(
        "execution.finished",
        status=ending.status,
        code=ending.error_code,
        duration_ms=ending.duration_ms,
    )
    if ending.status is not Status.PENDING:
        await publish_finished(room.redis, [claim.id])
        return
    due = datetime.now(UTC) + timedelta(seconds=ending.retry_in_s) if ending.retry_in_s else None
    try:
        await room.queue.put([Entry(claim.id, claim.attempt, claim.queue, claim.priority, due)])
    except AWAY as error:
        log.warning("queue.ring.failed", error=type(error).__name__)  # the sweep rings


def unstorable(ending: Ending) -> Ending:
    """Return an ending for a row whose own Postgres would not take."""
    return replace(
        ending,
        status=Status.ERROR,
        output=None,
        error_code=ErrorCode.INTERNAL,
        error_message="The result could not be stored",
        history=None,
    )


async def for_another(room: Room, execution_id: UUID) -> bool:
    """Tell whether the row waits for a handler that is not ours but a live worker's."""
    try:
        handler = await stale.waiting_for(room.pool, execution_id)
        if handler is None or handler in room.handlers:
            return False
        return any(handler in row["handlers"] for row in await presence.live(room.pool))
    except LOST:
        return False


async def another_can(room: Room, claim: Claim) -> bool:
    """Tell whether another live worker offers the handler and has what was missing here."""
    try:
        rows = await presence.live(room.pool)
    except LOST:
        return False
    return any(
        row["id"] != room.id
        and claim.handler in row["handlers"]
        and (claim.queue != "sandbox" or (row["sandbox"] or {}).get("engine") == "ready")
        for row in rows
    )


async def finished(room: Room, ending: Ending) -> bool:
    """Write the ending, again and again while Postgres is away: an outcome is never dropped.

    False when the attempt is not ours any more. After a lost answer that can't be told from a write
    that took effect, so it counts as one: an event too many does no harm.
    """
    delay, repeated = 0.05, False
    while True:
        try:
            return await room.executions.finish(ending) or repeated
        except Unavailable as error:
            log.warning("finish.waiting", error=type(error.__cause__).__name__)
            if room.stopping.is_set():
                raise  # the row stays ours until another worker reaps it
        except asyncpg.PostgresError:
            if ending.status is Status.ERROR and ending.output is None:
                raise
            log.exception("finish.refused")
            ending = unstorable(ending)
        repeated = True
        await asyncio.sleep(delay)
        delay = min(delay * 2, 2.0)
