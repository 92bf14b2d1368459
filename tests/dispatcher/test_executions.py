import asyncio
from typing import Any

import pytest

from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet

ECHO = {"skillName": "echo", "input": {"text": "hi"}}


async def test_a_submit_waits_for_the_end_and_answers_200_with_the_output(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(fleet.api.post(EXECUTIONS, json=ECHO))
    await fleet.run(await fleet.pending())
    response = await asked
    assert response.status_code == 200
    execution = response.json()["execution"]
    assert (execution["status"], execution["output"]) == ("success", {"text": "hi"})
    assert "Location" not in response.headers


async def test_respond_async_answers_202_with_the_committed_record_and_its_place(
    fleet: Fleet,
) -> None:
    await fleet.install()
    headers = {"Prefer": "respond-async"}
    response = await fleet.api.post(EXECUTIONS, json=ECHO, headers=headers)
    assert response.status_code == 202
    assert response.headers["Preference-Applied"] == "respond-async"
    body = response.json()
    assert body["execution"]["status"] == "pending"
    assert [warning["code"] for warning in body["warnings"]] == ["no_worker"]
    looked = await fleet.api.get(response.headers["Location"])
    assert looked.json()["execution"] == body["execution"]


async def test_who_does_not_wait_is_not_registered_for_the_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.install()

    def registered(_: object) -> None:
        raise AssertionError("somebody waits")

    monkeypatch.setattr(fleet.dispatcher.waiters, "expecting", registered)
    for wish, status in (("respond-async", 202), ("wait=0", 202), ("wait=1", 500)):
        response = await fleet.api.post(EXECUTIONS, json=ECHO, headers={"Prefer": wish})
        assert response.status_code == status


async def test_when_the_wait_runs_out_the_answer_is_202(fleet: Fleet) -> None:
    await fleet.install()
    response = await fleet.api.post(EXECUTIONS, json=ECHO, headers={"Prefer": "wait=1"})
    assert (response.status_code, response.headers["Preference-Applied"]) == (202, "wait=1")


async def test_a_look_may_wait_for_the_end(fleet: Fleet) -> None:
    await fleet.install()
    made = await fleet.submit()
    looking = asyncio.create_task(fleet.api.get(f"{EXECUTIONS}/{made['id']}", params={"wait": 60}))
    await fleet.run(made["id"])
    assert (await looking).json()["execution"]["status"] == "success"


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "soon"])
async def test_a_wait_that_is_no_time_is_422(fleet: Fleet, wait: str) -> None:
    await fleet.install()
    made = await fleet.submit()
    response = await fleet.api.get(f"{EXECUTIONS}/{made['id']}", params={"wait": wait})
    assert response.status_code == 422


async def test_the_same_key_while_it_runs_joins_the_wait_and_makes_no_second_row(
    fleet: Fleet,
) -> None:
    await fleet.install()
    headers = {"Idempotency-Key": "k-1"}
    first = await fleet.submit(headers)
    joined = asyncio.create_task(fleet.api.post(EXECUTIONS, json=ECHO, headers=headers))
    await fleet.run(first["id"])
    response = await joined
    assert response.status_code == 200
    assert response.headers["Idempotent-Replayed"] == "true"
    assert response.json()["execution"]["id"] == first["id"]
    assert await fleet.rows() == 1


async def test_the_same_key_with_another_request_is_a_conflict(fleet: Fleet) -> None:
    await fleet.install()
    headers = {"Idempotency-Key": "k-1"}
    await fleet.submit(headers)
    response = await fleet.api.post(
        EXECUTIONS, json={**ECHO, "input": {"text": "other"}}, headers=headers
    )
    assert (response.status_code, response.json()["code"]) == (409, "identity_conflict")
    assert await fleet.rows() == 1


async def test_request_identity_and_tool_call_id_are_a_key_together(fleet: Fleet) -> None:
    await fleet.install()
    call: dict[str, Any] = {"requestIdentity": "r-1", "toolCallId": "t-1"}
    first = await fleet.submit(**call)
    assert (await fleet.submit(**call))["id"] == first["id"]
    assert (await fleet.submit(**{**call, "toolCallId": "t-2"}))["id"] != first["id"]


async def test_the_same_key_of_two_owners_is_two_executions(fleet: Fleet) -> None:
    await fleet.install()
    (_, one), (_, two) = await fleet.key(), await fleet.key()
    key = {"Idempotency-Key": "shared"}
    first, second = await fleet.submit({**one, **key}), await fleet.submit({**two, **key})
    assert first["id"] != second["id"]


@pytest.mark.parametrize("key", ["", "a\tb", "x" * 256])
async def test_an_idempotency_key_that_is_none_is_422(fleet: Fleet, key: str) -> None:
    await fleet.install()
    response = await fleet.api.post(EXECUTIONS, json=ECHO, headers={"Idempotency-Key": key})
    assert response.status_code == 422


async def test_an_input_that_does_not_fit_is_422_with_every_place(fleet: Fleet) -> None:
    await fleet.install()
    response = await fleet.api.post(
        EXECUTIONS, json={"skillName": "echo", "input": {"text": 1, "n": -1, "x": 1}}
    )
    assert response.status_code == 422
    assert {found["pointer"] for found in response.json()["violations"]} == {"/text", "/n", ""}
    assert await fleet.rows() == 0


async def test_the_master_switch_makes_submits_503_and_leaves_reads_alone(fleet: Fleet) -> None:
    await fleet.install()
    await fleet.api.put(f"{SKILLS}/settings", json={"skillsEnabled": False})
    response = await fleet.api.post(EXECUTIONS, json=ECHO)
    assert (response.status_code, response.json()["code"]) == (503, "skills_disabled")
    assert response.json()["error"].startswith("Skills execution is disabled.")
    assert (await fleet.api.get(EXECUTIONS)).json()["data"] == []
    await fleet.api.put(f"{SKILLS}/settings", json={"skillsEnabled": None})
    await fleet.submit()


async def test_a_disabled_skill_is_409_and_an_unknown_one_404(fleet: Fleet) -> None:
    skill = await fleet.install()
    await fleet.api.put(f"{SKILLS}/{skill['id']}", json={"mode": "off"})
    for name, status, code in (("echo", 409, "skill_disabled"), ("no", 404, "skill_not_found")):
        response = await fleet.api.post(EXECUTIONS, json={"skillName": name})
        assert (response.status_code, response.json()["code"]) == (status, code)


async def test_the_owner_comes_from_the_credential(fleet: Fleet) -> None:
    await fleet.install()
    (id_a, a), (id_b, b) = await fleet.key(), await fleet.key()
    _, operator = await fleet.key("manage")
    mine = await fleet.submit(a, apiKeyId=id_b)
    assert mine["apiKeyId"] == id_a
    named = await fleet.submit(operator, apiKeyId=id_b)
    assert named["apiKeyId"] == id_b

    async def listed(headers: dict[str, str], **query: Any) -> set[str]:
        page = (await fleet.api.get(EXECUTIONS, params=query, headers=headers)).json()
        return {row["id"] for row in page["data"]}

    assert await listed(a) == await listed(a, apiKeyId=id_b) == {mine["id"]}
    assert await listed(b) == {named["id"]}
    assert await listed(operator) == {mine["id"], named["id"]}
    assert await listed(operator, apiKeyId=id_a) == {mine["id"]}
    response = await fleet.api.get(f"{EXECUTIONS}/{mine['id']}", headers=b, params={"wait": 1})
    assert response.status_code == 404


async def test_a_process_that_leaves_tells_its_waiting_callers_where_to_look(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(fleet.api.post(EXECUTIONS, json=ECHO))
    await fleet.pending()
    fleet.dispatcher.hurry()
    response = await asked
    assert response.status_code == 202
    assert response.headers["Location"].startswith(EXECUTIONS)


async def test_a_database_lost_after_the_commit_is_202_not_an_error(fleet: Fleet) -> None:
    await fleet.install()
    asked = asyncio.create_task(fleet.api.post(EXECUTIONS, json=ECHO))
    execution_id = await fleet.pending()
    fleet.dispatcher.pool.terminate()
    fleet.dispatcher.hurry()
    response = await asked
    assert response.status_code == 202
    body = response.json()
    assert body["execution"]["id"] == str(execution_id)
    assert "unavailable" in {warning["code"] for warning in body["warnings"]}
