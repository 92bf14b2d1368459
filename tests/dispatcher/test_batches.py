"""Many submits in one request: an answer for each, as if it had come alone."""

import asyncio
from typing import Any

import pytest

from dispatcher import batches
from dispatcher.caller import LIBRARY
from shared import redis as keys
from shared.errors import InvalidInput, SkillNotFound
from shared.models import Execution
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet
from tests.signals import until

BATCH = f"{EXECUTIONS}/batch"


def echo(**more: Any) -> dict[str, Any]:
    return {"skillName": "echo", "input": {"text": "hi"}, **more}


async def sent(fleet: Fleet, *items: Any, **headers: str) -> list[dict[str, Any]]:
    answer = await fleet.api.post(BATCH, json={"executions": items}, headers=headers)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


async def test_each_has_its_own_answer_in_order_and_a_wrong_one_spoils_no_other(
    fleet: Fleet,
) -> None:
    await fleet.install()
    results = await sent(
        fleet,
        echo(sessionId="first"),
        echo(input={"n": -1}),
        {"skillName": "unheard-of"},
        {"skillName": "echo", "unknown": 1},
        3,
        echo(input={"text": "\0"}),
        echo(input={"text": "x" * 1_100_000}),
        echo(expiresAt="2020-01-01T00:00:00Z"),
        echo(notBefore="2100-01-02T00:00:00Z", expiresAt="2100-01-01T00:00:00Z"),
        echo(sessionId="last"),
    )
    assert [found["status"] for found in results] == [
        202, 422, 404, 422, 422, 422, 413, 422, 422, 202,
    ]  # fmt: skip
    assert [results[i]["execution"]["sessionId"] for i in (0, -1)] == ["first", "last"]
    assert [warned["code"] for warned in results[0]["warnings"]] == ["no_worker"]
    assert results[1]["violations"][0]["pointer"] == "/n"
    assert results[2]["code"] == "skill_not_found"
    assert results[3]["violations"][0]["pointer"] == "/unknown"
    assert results[8]["violations"] == [
        {"pointer": "/expiresAt", "message": "is not after notBefore", "in": None}
    ]
    assert await fleet.rows() == 2


async def test_each_problem_is_what_the_submit_alone_meets(fleet: Fleet) -> None:
    await fleet.install()
    for wrong in (echo(input={"n": -1}), {"skillName": "unheard-of"}):
        alone = (await fleet.api.post(EXECUTIONS, json=wrong)).json()
        (result,) = await sent(fleet, wrong)
        assert {name: result[name] for name in ("status", "code", "error", "title")} == {
            name: alone[name] for name in ("status", "code", "error", "title")
        }


async def test_a_thousand_are_committed_and_rung_for_and_more_are_refused(fleet: Fleet) -> None:
    await fleet.install()
    results = await sent(fleet, *[echo(input={"n": n}) for n in range(1000)])
    assert {found["status"] for found in results} == {202}
    assert [found["execution"]["input"]["n"] for found in results] == list(range(1000))
    assert await fleet.rows() == 1000
    queue = keys.queue_key("direct")
    assert await fleet.dispatcher.redis.zcard(queue) == 1000
    for many in (0, 1001):
        body = {"executions": [echo()] * many}
        assert (await fleet.api.post(BATCH, json=body)).status_code == 422
    assert await fleet.rows() == 1000


async def test_a_body_may_be_four_times_a_submit_s_and_no_more(fleet: Fleet) -> None:
    await fleet.install()
    large = echo(input={"text": "x" * 900_000})
    assert {found["status"] for found in await sent(fleet, *[large] * 9)} == {202}
    answer = await fleet.api.post(BATCH, json={"executions": [large] * 10})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_keys_replay_within_a_batch_and_from_before(fleet: Fleet) -> None:
    await fleet.install()
    before = await fleet.submit({"Idempotency-Key": "k"})
    results = await sent(
        fleet,
        echo(idempotencyKey="k"),
        echo(idempotencyKey="new"),
        echo(idempotencyKey="new"),
        echo(idempotencyKey="k", input={"text": "other"}),
        echo(idempotencyKey=""),
    )
    assert [found["status"] for found in results] == [202, 202, 202, 409, 422]
    assert [found.get("replayed") for found in results] == [True, False, True, None, None]
    assert results[0]["execution"] == before
    assert results[1]["execution"]["id"] == results[2]["execution"]["id"]
    assert results[3]["code"] == "identity_conflict"
    await fleet.run(before["id"])
    (ended,) = await sent(fleet, echo(idempotencyKey="k"), Prefer="wait=60")
    assert (ended["status"], ended["execution"]["status"]) == (200, "success")


async def test_a_wait_is_for_all_of_them(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(
        sent(fleet, echo(), echo(input={"n": -1}), echo(), Prefer="wait=60")
    )
    await fleet.run(await fleet.pending())
    assert not asked.done()
    await fleet.run(await fleet.pending())
    results = await asked
    assert [found["status"] for found in results] == [200, 422, 200]
    assert results[0]["execution"]["output"] == {"text": "hi"}


async def test_what_has_not_ended_within_the_wait_is_202(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(sent(fleet, echo(), echo(), Prefer="wait=1"))
    await fleet.run(await fleet.pending())
    assert sorted(found["status"] for found in await asked) == [200, 202]


async def test_a_dispatcher_that_is_about_to_go_answers_with_what_there_is(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(sent(fleet, echo(), Prefer="wait=60"))
    await fleet.pending()

    async def waiting() -> bool:
        return bool(fleet.dispatcher.waiters._waiting)

    await until(waiting, "it waits")
    fleet.dispatcher.hurry()
    assert [found["status"] for found in await asyncio.wait_for(asked, 20)] == [202]


async def test_the_master_switch_refuses_the_whole(fleet: Fleet) -> None:
    await fleet.install()
    await fleet.api.put(f"{SKILLS}/settings", json={"skillsEnabled": False})
    answer = await fleet.api.post(BATCH, json={"executions": [echo()]})
    assert (answer.status_code, answer.json()["code"]) == (503, "skills_disabled")


async def test_the_library_submits_many(fleet: Fleet) -> None:
    await fleet.install()
    good, wrong, unknown = await fleet.dispatcher.submit_many(
        [
            {"skill_name": "echo", "input": {"text": "hi"}, "session_id": "s"},
            {"skill_name": "echo", "sessionId": "s"},
            {"skill_name": "unheard-of"},
        ]
    )
    assert isinstance(good, Execution)
    assert (good.session_id, good.api_key_id) == ("s", "system")
    assert isinstance(wrong, InvalidInput)
    assert isinstance(unknown, SkillNotFound)
    assert await batches.accept(fleet.dispatcher, [], LIBRARY) == []


@pytest.mark.parametrize("owner", ["own", "management"])
async def test_only_management_names_an_owner(fleet: Fleet, owner: str) -> None:
    await fleet.install()
    key_id, own = await fleet.key()
    headers = own if owner == "own" else {}
    (result,) = await sent(fleet, echo(apiKeyId="another"), **headers)
    assert result["execution"]["apiKeyId"] == (key_id if headers else "another")
