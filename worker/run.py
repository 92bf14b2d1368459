"""Executions on this worker: claimed together, each attempted, finished, made known."""

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from uuid import UUID

import asyncpg
import structlog

from shared import presence, stale
from shared.db import LOST
from shared.errors import ErrorCode, Unavailable
from shared.executions import Claim, Ending
from shared.gates import Limit
from shared.logging import ATTEMPT
from shared.pauses import Pause
from shared.queue import Entry
from shared.redis import AWAY
from shared.schemas import Validator
from shared.snapshot import Snapshot
from shared.states import Status
from worker import attempt, retry
from worker.context import Context
from worker.outcome import Outcome, failed
from worker.room import Room
from worker.ticket import Ticket, Verdict, Work
from worker.workspace import Workspace

log = structlog.get_logger(__name__)


async def take(room: Room, tickets: Sequence[Ticket]) -> list[Work | Verdict]:
    """Claim the executions of entries in one statement; work for ours, a verdict for the rest."""
    snapshot = await room.registry.snapshot()
    if not snapshot.settings.skills_enabled:
        return [Verdict.DROP] * len(tickets)  # the sweep rings again once the switch is on
    # Two entries of one execution, or one of what runs here already: the first has it.
    asked = {t.execution_id: t for t in reversed(tickets) if t.execution_id not in room.held}
    room.held.update(asked)
    claims: dict[UUID, Claim] = {}
    try:
        claims = await room.executions.claim(list(asked), room.id, snapshot.pauses)
    finally:
        room.held.difference_update(asked.keys() - claims.keys())
    others = await for_others(room, asked.keys() - claims.keys(), snapshot.pauses)
    return [
        Verdict.DROP
        if asked.get(ticket.execution_id) is not ticket
        else run(room, claims[ticket.execution_id], snapshot)
        if ticket.execution_id in claims
        else Verdict.PASS_ON
        if ticket.execution_id in others
        else Verdict.DROP
        for ticket in tickets
    ]


async def limits(room: Room, tickets: Sequence[Ticket]) -> dict[bytes, tuple[Limit, ...]]:
    """Say which gates the entries have to pass; those that have none are left out."""
    snapshot = await room.registry.snapshot()
    if not snapshot.limited:
        return {}
    found = {t.entry_id: snapshot.limits(t.owner, t.skill) for t in tickets}
    return {entry_id: passed for entry_id, passed in found.items() if passed}


async def run(room: Room, claim: Claim, snapshot: Snapshot) -> UUID | None:
    """Run what was claimed; return its id when it has ended, which is to be made known."""
    ATTEMPT.set((claim.id, claim.skill_name, claim.attempt))
    try:
        ending = await run_claim(room, claim, snapshot)
    finally:
        room.held.discard(claim.id)
    # Let go of first: the next attempt, which this rings for, may be taken up here at once.
    if ending is not None and ending.status is Status.PENDING:
        await ring_again(room, claim, ending)
        return None
    return claim.id if ending is not None else None


async def run_claim(room: Room, claim: Claim, snapshot: Snapshot) -> Ending | None:
    """Attempt and finish; None when the row was not ours any more. Whatever happens, it ends."""
    log.debug("execution.started", handler=claim.handler)
    began = asyncio.get_running_loop().time()
    try:
        outcome = await attempted(room, claim, snapshot)
    except Exception:
        log.exception("attempt.broken")
        outcome = failed(ErrorCode.INTERNAL, "The worker failed while it ran this execution")
    duration_ms = round((asyncio.get_running_loop().time() - began) * 1000)
    elsewhere = outcome.nothing_ran and await another_can(room, claim)
    ending = retry.decide(claim, outcome, duration_ms, elsewhere=elsewhere)
    written = await finished(room, ending)
    if written is None:
        log.warning("execution.fenced", reason="another attempt has begun, or the row is gone")
        return None
    ending = ending._replace(status=written)
    log.log(
        logging.DEBUG if written is Status.SUCCESS else logging.INFO,
        "execution.finished",
        status=written,
        code=ending.error_code,
        duration_ms=duration_ms,
    )
    return ending


async def attempted(room: Room, claim: Claim, snapshot: Snapshot) -> Outcome:
    """Run the attempt under its limit: the row's, else the run-time setting's."""
    handler = room.handlers[claim.handler]
    limit_ms = claim.timeout_ms or snapshot.settings.execution_timeout_ms
    skill = snapshot.by_id.get(claim.skill_id)
    schema: Validator | None = room.validators.of(skill, "output") if skill else None
    context = Context(
        execution_id=claim.id,
        skill=claim.skill_name,
        attempt=claim.attempt,
        max_retries=claim.max_retries,
        api_key_id=claim.api_key_id,
        caller=claim.caller,
        session_id=claim.session_id,
        provider=claim.provider,
        model=claim.model,
        deadline=asyncio.get_running_loop().time() + limit_ms / 1000,
        settings=room.settings,
        workspace=Workspace(room.settings.data.dir, claim.api_key_id, room.settings.max.file_bytes),
        sandbox=room.sandbox,
    )
    return await attempt.run(handler, claim.input, context, schema, room.stopping)


async def ring_again(room: Room, claim: Claim, ending: Ending) -> None:
    """Enqueue the next attempt of a row that was given back."""
    entry = Entry(
        claim.id,
        claim.attempt,
        claim.queue,
        claim.priority,
        due_in_s=ending.retry_in_s,
        owner=claim.api_key_id,
        skill=str(claim.skill_id),
    )
    try:
        await room.queue.put([entry])
    except AWAY as error:
        log.warning("queue.ring.failed", error=type(error).__name__)  # the sweep rings


def unstorable(ending: Ending) -> Ending:
    """Return an ending for a row whose own Postgres would not take."""
    return ending._replace(
        status=Status.ERROR,
        output=None,
        error_code=ErrorCode.INTERNAL,
        error_message="The result could not be stored",
        history=None,
    )


async def for_others(room: Room, ids: Collection[UUID], pauses: Collection[Pause]) -> set[UUID]:
    """Return those whose rows wait for a handler that is not ours but a live worker's."""
    if not ids:
        return set()
    try:
        waiting = await stale.waiting_for(room.pool, ids, pauses)
        foreign = {i: name for i, name in waiting.items() if name not in room.handlers}
        if not foreign:
            return set()
        offered = {name for row in await presence.live(room.pool) for name in row["handlers"]}
    except LOST:
        return set()
    return {i for i, name in foreign.items() if name in offered}


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


async def finished(room: Room, ending: Ending) -> Status | None:
    """Write the ending, again and again while Postgres is away: an outcome is never dropped.

    Returns the status that was written, None when the attempt is not ours any more. After a lost
    answer that can't be told from a write that took effect, so it counts as one: an event too many
    does no harm.
    """
    delay, repeated = 0.05, False
    while True:
        try:
            written = await room.executions.finish(ending)
            return ending.status if written is None and repeated else written
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
        await asyncio.sleep(random.uniform(delay / 2, delay))  # noqa: S311  # no secret
        delay = min(delay * 2, 2.0)
