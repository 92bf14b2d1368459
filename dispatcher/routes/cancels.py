"""Cancelling over HTTP: one execution, or all that a filter leaves."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Header
from starlette.responses import Response

from dispatcher.answers import CancelledAnswer, CancelRequest, ExecutionAnswer
from dispatcher.prefer import preference
from dispatcher.routes.executions import ACCEPTED, PATH, TAG, replied
from dispatcher.routing import Doors, Who, add, answer
from shared.history import Filter
from shared.states import Status


def register(app: FastAPI) -> None:
    """Add the routes."""
    add(
        app, "POST", PATH + "/{execution_id:uuid}/cancel", cancel_execution,
        scope="execute:skills", answer=ExecutionAnswer, refuses=(404, 409), tags=[TAG],
        responses={202: {**ACCEPTED, "description": "It runs, and its worker is told to stop it"}},
    )  # fmt: skip
    add(
        app, "POST", PATH + "/cancel", cancel_executions, scope="execute:skills",
        answer=CancelledAnswer, tags=[TAG],
    )  # fmt: skip


async def cancel_execution(
    execution_id: UUID,
    dispatcher: Doors,
    caller: Who,
    prefer: Annotated[
        list[str] | None, Header(description="respond-async, or wait=N (seconds, at most 120).")
    ] = None,
) -> Response:
    """Cancel an execution that has not ended: it ends as `error` with the code `cancelled`.

    What waits ends at once. What runs is stopped, its container killed; the answer waits for that
    five seconds, or what `Prefer` says. Cancelled before: 200 again; ended otherwise: 409,
    `already_finished`.
    """
    wish = preference(prefer or ())
    done = await dispatcher.cancel(
        execution_id, caller.seeing(None), actor=caller.actor, wait_s=wish.wait_s
    )
    return replied(done, wish, replayed=False, warnings=())


async def cancel_executions(asked: CancelRequest, dispatcher: Doors, caller: Who) -> Response:
    """Cancel every execution that fits and has not ended: a key's own, or anybody's for management.

    What waits has ended with the answer; what runs ends soon after. `since` and `until` are times
    of creation. Executions submitted while this goes on are left alone.
    """
    narrowed = Filter(
        owner=caller.seeing(asked.api_key_id),
        skill_id=asked.skill_id,
        skill_name=asked.skill_name,
        status=Status(asked.status) if asked.status else None,
        session_id=asked.session_id,
        since=asked.since,
        until=asked.until,
    )
    counts = await dispatcher.cancel_all(narrowed, actor=caller.actor)
    return answer(CancelledAnswer(ended=counts.ended, stopping=counts.stopping))
