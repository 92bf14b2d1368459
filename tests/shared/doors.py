"""The doors of an execution, over a database of the test's own."""

from typing import Any

from shared.executions import Claim, Ending, Executions
from shared.states import Status
from tests.factories import claim_one, submit

ECHO = ["echo"]
WORKERS = ("worker-a", "worker-b")


async def claimed(executions: Executions, **changes: Any) -> Claim:
    claim = await claim_one(executions, await submit(executions, **changes), "worker-a")
    assert claim is not None
    return claim


def ending(claim: Claim, status: Status = Status.SUCCESS, **changes: Any) -> Ending:
    return Ending(
        **{
            "id": claim.id,
            "attempt": claim.attempt,
            "worker_id": claim.worker_id,
            "status": status,
            "output": '{"ok": true}',
            **changes,
        }
    )
