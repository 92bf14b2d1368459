"""Cancelling over HTTP, and callers that go away."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from shared import cancels
from shared.events import publish_finished
from shared.executions import Claim, Ending, Executions
from shared.states import Status
from tests.dispatcher.fleet import EXECUTIONS, WORKER, Fleet, bearer
from tests.factories import claim_one
from tests.flows.serving import serving
from tests.services import MANAGEMENT_TOKEN
from tests.signals import until

ECHO = {"skillName": "echo", "input": {"text": "hi"}}


async def running(fleet: Fleet, execution_id: str) -> Claim:
    """Claim an execution, as a worker does."""
    doors = Executions(fleet.dispatcher.pool, ["echo-handler"])
    claim = await claim_one(doors, UUID(execution_id), WORKER)
    assert claim is not None
    return claim


async def end(fleet: Fleet, claim: Claim, **how: Any) -> None:
    """Finish an execution and say so."""
    ending = Ending(id=claim.id, attempt=claim.attempt, worker_id=WORKER, **how)
    assert await Executions(fleet.dispatcher.pool).finish(ending)
    await publish_finished(fleet.dispatcher.redis, [claim.id])


async def cancel(fleet: Fleet, execution_id: object, **headers: str) -> Any:
    return await fleet.api.post(f"{EXECUTIONS}/{execution_id}/cancel", headers=headers)


async def marked(fleet: Fleet, execution_id: UUID) -> None:
    await until(
        lambda: cancels.requested(fleet.dispatcher.pool, [execution_id], WORKER), "it is marked"
    )


async def test_what_waits_ends_at_once_and_a_second_time_is_200_again(fleet: Fleet) -> None:
    await fleet.install()
    key_id, headers = await fleet.key()
    made = await fleet.submit(headers)
    first = await cancel(fleet, made["id"], **headers)
    again = await cancel(fleet, made["id"], **headers)
    assert (first.status_code, again.status_code) == (200, 200)
    execution = first.json()["execution"]
    assert (execution["status"], execution["errorCode"]) == ("error", "cancelled")
    assert (execution["cancelledBy"], execution["attempt"]) == (f"key:{key_id}", 0)
    assert again.json() == first.json()


async def test_who_waits_for_it_is_answered(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(fleet.api.post(EXECUTIONS, json=ECHO))
    await cancel(fleet, await fleet.pending())
    assert (await asked).json()["execution"]["errorCode"] == "cancelled"


async def test_the_answer_waits_for_what_runs_to_end(fleet: Fleet) -> None:
    await fleet.install()
    claim = await running(fleet, (await fleet.submit())["id"])
    cancelling = asyncio.create_task(cancel(fleet, claim.id, Prefer="wait=60"))
    await marked(fleet, claim.id)
    await end(fleet, claim, status=Status.ERROR, error_code="cancelled", output='{"so": "far"}')
    answer = await cancelling
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, "wait=60")
    execution = answer.json()["execution"]
    assert (execution["errorCode"], execution["output"]) == ("cancelled", {"so": "far"})


async def test_what_does_not_end_within_the_wait_is_202(fleet: Fleet) -> None:
    await fleet.install()
    claim = await running(fleet, (await fleet.submit())["id"])
    answer = await cancel(fleet, claim.id, Prefer="respond-async")
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"{EXECUTIONS}/{claim.id}"
    execution = answer.json()["execution"]
    assert (execution["status"], execution["cancelledBy"]) == ("running", "management")
    assert execution["cancelRequestedAt"] is not None


async def test_what_ends_by_itself_first_is_a_conflict(fleet: Fleet) -> None:
    await fleet.install()
    claim = await running(fleet, (await fleet.submit())["id"])
    cancelling = asyncio.create_task(cancel(fleet, claim.id, Prefer="wait=60"))
    await marked(fleet, claim.id)
    await end(fleet, claim, status=Status.SUCCESS, output="{}")
    for answer in (await cancelling, await cancel(fleet, claim.id)):
        assert (answer.status_code, answer.json()["code"]) == (409, "already_finished")
        assert "as success" in answer.json()["error"]


async def test_another_key_s_execution_and_none_are_404(fleet: Fleet) -> None:
    await fleet.install()
    _, mine = await fleet.key()
    _, other = await fleet.key()
    made = await fleet.submit(mine)
    for execution_id in (made["id"], uuid7()):
        answer = await cancel(fleet, execution_id, **other)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await fleet.api.get(f"{EXECUTIONS}/{made['id']}")).json()["execution"] == made


async def test_a_filter_cancels_the_caller_s_own_and_says_how_many(fleet: Fleet) -> None:
    await fleet.install()
    own_id, own = await fleet.key()
    for _ in range(3):
        await fleet.submit(own, sessionId="s")
    await running(fleet, (await fleet.submit(own, sessionId="s"))["id"])
    await fleet.submit(own, sessionId="t")
    kept = await fleet.submit(sessionId="s")
    body = {"sessionId": "s", "apiKeyId": "system"}
    answer = await fleet.api.post(f"{EXECUTIONS}/cancel", json=body, headers=own)
    assert (answer.status_code, answer.json()) == (200, {"ended": 3, "stopping": 1})
    assert (await fleet.api.get(f"{EXECUTIONS}/{kept['id']}")).json()["execution"] == kept
    body = {"apiKeyId": own_id, "status": "pending"}
    answer = await fleet.api.post(f"{EXECUTIONS}/cancel", json=body)
    assert answer.json() == {"ended": 1, "stopping": 0}


@pytest.mark.parametrize("body", [{}, {"status": "success"}, {"session": "s"}])
async def test_a_filter_that_says_nothing_or_nonsense_is_422(
    fleet: Fleet, body: dict[str, Any]
) -> None:
    await fleet.install()
    await fleet.submit()
    answer = await fleet.api.post(f"{EXECUTIONS}/cancel", json=body)
    assert answer.status_code == 422
    assert answer.json()["violations"]
    await fleet.pending()


# --- callers that go away -------------------------------------------------------------------------


async def hang_up(port: int, path: str, body: dict[str, Any], fleet: Fleet, **headers: str) -> UUID:
    """Send a submit that waits, and close the connection once its row is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    fields = {**bearer(MANAGEMENT_TOKEN), "Content-Type": "application/json", **headers}
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}"]
    head += [f"{name}: {value}" for name, value in fields.items()]
    writer.write("\r\n".join([*head, "", ""]).encode() + content)
    execution_id = await fleet.pending()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    return execution_id


async def error_code(fleet: Fleet, execution_id: UUID) -> Any:
    return (await fleet.dispatcher.get(execution_id)).error_code


async def test_what_its_caller_leaves_is_cancelled_when_it_asked_for_that(fleet: Fleet) -> None:
    await fleet.install()
    async with serving(fleet.app) as port:
        body = {**ECHO, "cancelOnDisconnect": True}
        left = await hang_up(port, EXECUTIONS, body, fleet)
        await until(lambda: error_code(fleet, left), "it is cancelled")
        assert await error_code(fleet, left) == "cancelled"
        waiting = {"executions": [body, ECHO]}
        left = await hang_up(port, f"{EXECUTIONS}/batch", waiting, fleet, Prefer="wait=60")
        await until(lambda: error_code(fleet, left), "the one that asked for it is cancelled")
    rows = (await fleet.api.get(EXECUTIONS)).json()["data"]
    assert sorted(row["status"] for row in rows) == ["error", "error", "pending"]


async def test_what_did_not_ask_for_it_and_who_was_answered_is_left_alone(fleet: Fleet) -> None:
    await fleet.install()
    async with serving(fleet.app) as port:
        left = await hang_up(port, EXECUTIONS, ECHO, fleet)
        await fleet.run(left)
    asked = {**ECHO, "cancelOnDisconnect": True}
    answer = asyncio.create_task(fleet.api.post(EXECUTIONS, json=asked))
    await fleet.run(await fleet.pending())
    assert (await answer).json()["execution"]["status"] == "success"


async def test_a_refused_submit_that_asked_for_it_is_refused_as_any(fleet: Fleet) -> None:
    await fleet.install()
    body = {**ECHO, "input": {"n": -1}, "cancelOnDisconnect": True}
    assert (await fleet.api.post(EXECUTIONS, json=body)).status_code == 422
