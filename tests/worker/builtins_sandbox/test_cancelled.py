"""A cancelled call kills its container, and what the program printed until then is kept."""

import asyncio
import json
from uuid import uuid4

import pytest

from shared.errors import ErrorCode
from shared.settings import Settings
from shared.states import Status
from tests.factories import handler_of
from tests.worker.sandbox.containers import playing
from tests.worker.sandbox.contexts import make_context
from worker import attempt
from worker.builtins.execute_command import execute_command
from worker.sandbox.run import Sandbox
from worker.stops import Stops


@pytest.mark.docker
async def test_a_cancelled_call_ends_as_cancelled_with_what_it_had_printed(
    sandbox: Sandbox, settings: Settings
) -> None:
    stops, context = Stops(), make_context(sandbox, settings, execution_id=uuid4())
    call = {"command": "sh", "args": ["-c", "echo so far; sleep 60"]}
    running = asyncio.create_task(
        attempt.run(handler_of(execute_command), call, context, None, stops)
    )
    await playing(context.execution_id, "sleep 60")
    stops.cancel([context.execution_id])
    outcome = await asyncio.wait_for(running, 20)
    assert (outcome.status, outcome.error_code) == (Status.ERROR, ErrorCode.CANCELLED)
    output = json.loads(outcome.output or "")
    assert (output["stdout"], output["killed"], output["timedOut"]) == ("so far\n", True, False)
    assert sandbox.running() == ()
