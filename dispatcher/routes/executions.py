"""Executions over HTTP: submit, look, list."""

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Header, Query, Request
from pydantic import AwareDatetime
from starlette.responses import Response

from dispatcher.answers import ExecutionAnswer, ExecutionPage, Warned
from dispatcher.disconnects import attended
from dispatcher.paging import Asked, decode, page_of
from dispatcher.prefer import Preference, preference
from dispatcher.routing import Doors, Who, add, answer
from dispatcher.waits import WAIT_MAX_S
from shared import history
from shared.history import Filter
from shared.models import Execution, SubmitRequest, Text
from shared.states import Status

PATH = "/api/skills/executions"
TAG = "executions"


def register(app: FastAPI) -> None:
    """Add the routes."""
    add(
        app, "POST", PATH, submit_execution, scope="execute:skills", answer=ExecutionAnswer,
        refuses=(404, 409, 429), tags=[TAG], responses={202: ACCEPTED},
    )  # fmt: skip
    add(app, "GET", PATH, list_executions, scope="read:skills", answer=ExecutionPage, tags=[TAG])
    add(
        app, "GET", PATH + "/{execution_id:uuid}", get_execution, scope="read:skills",
        answer=ExecutionAnswer, refuses=(404,), tags=[TAG],
    )  # fmt: skip


ACCEPTED = {
    "model": ExecutionAnswer,
    "description": "Committed and not finished yet; Location says where to look",
    "headers": {"Location": {"schema": {"type": "string"}}},
}


async def submit_execution(
    asked: SubmitRequest,
    request: Request,
    dispatcher: Doors,
    caller: Who,
    prefer: Annotated[
        list[str] | None, Header(description="respond-async, or wait=N (seconds, at most 120).")
    ] = None,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, pattern=r"^[\x20-\x7e]*$")
    ] = None,
) -> Response:
    """Execute a skill and wait for its end: 200 with the finished execution, else 202.

    Without `Prefer` it waits for the time limit and five seconds, at most two minutes. The same
    `Idempotency-Key` with the same skill and input answers with the same execution. With
    `cancelOnDisconnect` an execution that this request made is cancelled when the connection ends
    while it waits.
    """
    wish = preference(prefer or ())
    submit = partial(dispatcher.accept, asked, caller, idempotency_key, wish.wait_s)
    if asked.cancel_on_disconnect:
        done = await attended(request, dispatcher, caller, submit)
    else:
        done = await submit()
    return replied(done.execution, wish, replayed=done.replayed, warnings=done.warnings)


async def get_execution(
    execution_id: UUID,
    dispatcher: Doors,
    caller: Who,
    wait: Annotated[
        float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait for its end, ≤ 120.")
    ] = 0,
) -> Response:
    """Return an execution, as it stands or as soon as it has ended within the wait."""
    owner = caller.seeing(None)
    if wait > 0:
        found = await dispatcher.wait(execution_id, min(wait, WAIT_MAX_S), owner)
    else:
        found = await dispatcher.get(execution_id, owner)
    (found,) = await dispatcher.reasons.explained([found])
    return answer(ExecutionAnswer.model_construct(execution=found))


async def list_executions(
    dispatcher: Doors,
    caller: Who,
    asked: Asked,
    api_key_id: Annotated[
        Text | None, Query(alias="apiKeyId", description="An owner; for management only.")
    ] = None,
    skill_id: Annotated[UUID | None, Query(alias="skillId")] = None,
    skill_name: Annotated[Text | None, Query(alias="skillName")] = None,
    status: Status | None = None,
    session_id: Annotated[Text | None, Query(alias="sessionId")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Created at or after.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Created before.")] = None,
) -> Response:
    """List executions, newest first: a key's own, or anybody's for management.

    Inputs and outputs beyond 8 MiB a page read `{"truncated": true}`; the execution has them.
    """
    narrowed = Filter(
        owner=caller.seeing(api_key_id),
        skill_id=skill_id,
        skill_name=skill_name,
        status=status,
        session_id=session_id,
        since=since,
        until=until,
    )
    before = decode(asked.cursor, UUID)[0] if asked.cursor is not None else None
    rows = await history.page(
        dispatcher.pool, narrowed, limit=asked.fetch, before=before, offset=asked.offset
    )
    rows = await dispatcher.reasons.explained(rows)
    return answer(
        await page_of(
            ExecutionPage,
            asked,
            rows,
            lambda row: [str(row.id)],
            lambda: dispatcher.count(narrowed),
        )
    )


def replied(
    execution: Execution,
    wish: Preference,
    *,
    replayed: bool,
    warnings: tuple[dict[str, str], ...],
) -> Response:
    """Answer a submit: 200 when it has ended, 202 with where to look when not."""
    headers = {"Idempotent_Replayed": "true"} if replayed else {}
    if wish.applied:
        headers["Preference_Applied"] = wish.applied
    if not execution.finished:
        headers["Location"] = f"{PATH}/{execution.id}"
    told = [Warned(code=warning["code"], message=warning["message"]) for warning in warnings]
    return answer(
        ExecutionAnswer.model_construct(execution=execution, warnings=told or None),
        200 if execution.finished else 202,
        **headers,
    )
