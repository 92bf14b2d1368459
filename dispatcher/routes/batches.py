"""Many submits in one request."""

from functools import partial
from typing import Annotated

from fastapi import FastAPI, Header, Request
from starlette.responses import Response

from dispatcher import batches, problems
from dispatcher.answers import (
    BatchAccepted,
    BatchAnswer,
    BatchRefused,
    BatchRequest,
    Warned,
)
from dispatcher.disconnects import attended
from dispatcher.prefer import preference
from dispatcher.routes.executions import PATH, TAG
from dispatcher.routing import Doors, Who, add, answer
from dispatcher.submission import Submission
from shared.models import KeyedSubmit, trusted


def register(app: FastAPI) -> None:
    """Add the route."""
    add(
        app, "POST", PATH + "/batch", submit_executions, scope="execute:skills",
        answer=BatchAnswer, tags=[TAG],
    )  # fmt: skip


async def submit_executions(
    asked: BatchRequest,
    request: Request,
    dispatcher: Doors,
    caller: Who,
    prefer: Annotated[
        list[str] | None, Header(description="wait=N (seconds, at most 120); else no wait.")
    ] = None,
) -> Response:
    """Execute up to 1,000 skills; each gets its own answer, and a wrong one spoils no other.

    `results` come in order, each with the `status` that its submit alone would have answered, and
    its `execution` or the fields of a problem. `idempotencyKey` is what the header is there. With
    `Prefer: wait=N` the answer waits until all have ended, else for none. The body may be four
    times as large as that of one submit; inputs and outputs that were read again and exceed 8 MiB
    in all read `{"truncated": true}`.
    """
    wish = preference(prefer or ())
    items = [batches.item(raw) for raw in asked.executions]
    submit = partial(batches.accept, dispatcher, items, caller, wish.wait_s or 0.0)
    if wish.wait_s and any(isinstance(i, KeyedSubmit) and i.cancel_on_disconnect for i in items):
        answers = await attended(request, dispatcher, caller, submit)
    else:
        answers = await submit()
    results = [result(found, request.scope["path"]) for found in answers]
    headers = {"Preference_Applied": wish.applied} if wish.applied else {}
    return answer(BatchAnswer.model_construct(results=results), 200, **headers)


def result(found: batches.Answer, path: str) -> BatchAccepted | BatchRefused:
    """Write one answer as it stands among the results."""
    if isinstance(found, Submission):
        told = [Warned(code=one["code"], message=one["message"]) for one in found.warnings]
        return trusted(
            BatchAccepted,
            {
                "status": 200 if found.execution.finished else 202,
                "execution": found.execution,
                "warnings": told or None,
                "replayed": found.replayed,
            },
        )
    return BatchRefused(**problems.told(path, found))
