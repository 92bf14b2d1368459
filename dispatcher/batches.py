"""Many submits at once: one look at the registry, one commit, one ring; an answer for each.

What is wrong with one is its own answer and spoils no other.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import structlog
from pydantic import ValidationError

from dispatcher import intake
from dispatcher.caller import Caller
from dispatcher.intake import Prepared
from dispatcher.submission import UNREADABLE, Submission, Warnings
from dispatcher.violations import from_validation
from dispatcher.waits import WAIT_MAX_S, happens
from shared import history
from shared.errors import IdentityConflict, InvalidInput, SkillfleetError, Unavailable
from shared.executions import Created, Existing
from shared.models import Execution, KeyedSubmit, PendingReason
from shared.snapshot import Snapshot

if TYPE_CHECKING:
    from dispatcher.dispatcher import Dispatcher

log = structlog.get_logger(__name__)

Item = KeyedSubmit | SkillfleetError
Answer = Submission | SkillfleetError
Made = Created | Existing | SkillfleetError


async def accept(
    dispatcher: "Dispatcher",
    items: Sequence[Item],
    caller: Caller,
    wait_s: float = 0.0,
    committed: "asyncio.Future[Sequence[UUID]] | None" = None,
) -> list[Answer]:
    """Submit them all; return once all have ended or the wait is over, answers in order.

    ``committed`` is given the ids of the new rows that end with their caller's connection. Raises
    SwitchedOff, or Unavailable when not even the registry can be read.
    """
    snapshot = await dispatcher.ready()
    asked = [prepared(dispatcher, snapshot, item, caller) for item in items]
    fit = [one for one in asked if isinstance(one, Prepared)]
    refusals = await dispatcher.limits.refusals(snapshot, fit)
    asked = [refusals.get(one.new.id, one) if isinstance(one, Prepared) else one for one in asked]
    made = await created(dispatcher, [one for one in asked if isinstance(one, Prepared)])
    fresh = [
        one for one in asked if isinstance(one, Prepared) and isinstance(made[one.new.id], Created)
    ]
    if committed is not None:
        committed.set_result([one.new.id for one in fresh if one.request.cancel_on_disconnect])
    replayed = [held.execution_id for held in made.values() if isinstance(held, Existing)]
    with ExitStack() as stack:
        events = {
            i: stack.enter_context(dispatcher.waiters.expecting(i))
            for i in ([*(one.new.id for one in fresh), *replayed] if wait_s > 0 else [])
        }
        warnings = await rung(dispatcher, fresh)
        rows = await looked_up(dispatcher, events, replayed, min(wait_s, WAIT_MAX_S))
    fresh_reason = partial(dispatcher.reasons.fresh, snapshot)
    return [answer(one, made, warnings, rows, fresh_reason) for one in asked]


def item(raw: object, *, by_name: bool = False) -> Item:
    """Read one item, in the wire's names or, from this process, in our own."""
    if not isinstance(raw, Mapping):
        return InvalidInput("An execution must be a JSON object", [intake.whole("not an object")])
    try:
        return KeyedSubmit.model_validate(dict(raw), by_alias=not by_name, by_name=by_name)
    except ValidationError as error:
        return from_validation(error)


def prepared(
    dispatcher: "Dispatcher", snapshot: Snapshot, asked: Item, caller: Caller
) -> Prepared | SkillfleetError:
    """Return the item's row to be, or what is wrong with it."""
    if isinstance(asked, SkillfleetError):
        return asked
    try:
        return dispatcher.prepare(snapshot, asked, caller, asked.idempotency_key)
    except SkillfleetError as error:
        return error


async def created(dispatcher: "Dispatcher", asked: Sequence[Prepared]) -> dict[UUID, Made]:
    """Commit the rows, together as far as they fit one statement."""
    rows = [one.new for one in asked]
    made = await intake.commit_many(dispatcher.executions, rows)
    return {new.id: known(one) for new, one in zip(rows, made, strict=True)}


def known(made: Created | Existing | BaseException) -> Made:
    """Return an error of our tree for one that is not: its neighbours are committed already."""
    if isinstance(made, Created | Existing | SkillfleetError):
        return made
    if not isinstance(made, Exception):
        raise made
    log.error("batch.item.failed", exc_info=made)
    return SkillfleetError("Something went wrong inside. The log has the details")


async def rung(dispatcher: "Dispatcher", fresh: Sequence[Prepared]) -> dict[str, Warnings]:
    """Enqueue the new rows; return the warnings of each handler's executions."""
    skills = {one.new.handler: one.skill for one in fresh}
    told = await dispatcher.ring(fresh) if fresh else ()
    if told:
        return dict.fromkeys(skills, told)
    try:
        return {name: await dispatcher.offers.warnings(skill) for name, skill in skills.items()}
    except Unavailable:  # the rows are safe; their callers must not think they are not
        return dict.fromkeys(skills, (UNREADABLE,))


async def looked_up(
    dispatcher: "Dispatcher",
    events: Mapping[UUID, asyncio.Event],
    replayed: Sequence[UUID],
    wait_s: float,
) -> dict[UUID, Execution]:
    """Return the rows as they are once all have ended or the wait is over.

    Without a wait those of the replays, which are not known yet; none when they can't be read.
    """
    try:
        if events:
            for execution_id in replayed:
                events[execution_id].set()  # it may have ended long ago
            return await ended(dispatcher, events, wait_s)
        found = await history.many(dispatcher.pool, replayed) if replayed else {}
        explained = await dispatcher.reasons.explained([*found.values()])
        return {execution.id: execution for execution in explained}
    except Unavailable:
        return {}


async def ended(
    dispatcher: "Dispatcher", events: Mapping[UUID, asyncio.Event], wait_s: float
) -> dict[UUID, Execution]:
    """Wait for all of the events, and again for those whose execution had not ended after all."""
    loop = asyncio.get_running_loop()
    end, found, left = loop.time() + wait_s, dict[UUID, Execution](), dict(events)
    while left:
        timely = True
        for event in left.values():
            timely = timely and (event.is_set() or await happens(event, end - loop.time()))
        for event in left.values():
            event.clear()
        found |= await history.many(dispatcher.pool, list(left))
        if dispatcher.hurried or not timely:
            break
        left = {i: e for i, e in left.items() if not (i in found and found[i].finished)}
    return found


def answer(
    one: Prepared | SkillfleetError,
    made: Mapping[UUID, Made],
    warnings: Mapping[str, Warnings],
    rows: Mapping[UUID, Execution],
    reason: Callable[[Prepared], PendingReason],
) -> Answer:
    """Return what a submit alone would have answered."""
    if isinstance(one, SkillfleetError):
        return one
    match made[one.new.id]:
        case Created() as fresh:
            row = rows.get(one.new.id)
            row = row or intake.pending(one.new, one.request, fresh, reason(one))
            return Submission(row, warnings=warnings.get(one.new.handler, ()))
        case Existing() as held if held.digest != one.new.input_digest:
            return IdentityConflict()
        case Existing() as held:
            found = rows.get(held.execution_id)
            return Submission(found, replayed=True) if found else Unavailable(UNREADABLE["message"])
        case SkillfleetError() as error:
            return error
