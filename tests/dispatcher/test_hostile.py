"""Requests that cost more than they should: each is refused early, or answered within bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import orjson
import pytest

from dispatcher import routing
from shared import history
from shared.errors import BadRequest, InvalidInput
from shared.history import PAGE_BYTES
from shared.strictjson import MAX_CONTAINERS, MAX_VALUES, loads
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet

ASYNC = {"Prefer": "respond-async"}


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b"[]"] * MAX_CONTAINERS) + b"]",
        b"[" + b",".join([b"{}"] * MAX_CONTAINERS) + b"]",
        b"[" + b",".join([b"[" * 50 + b"]" * 50] * (MAX_CONTAINERS // 50)) + b"]",
        b"[" + b",".join([b"1"] * (MAX_VALUES + 2)) + b"]",
        b"[" + b",".join([b'"[,"'] * (MAX_VALUES + 2)) + b"]",
    ],
    ids=["arrays", "objects", "nested", "numbers", "strings"],
)
def test_a_text_of_too_many_values_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="holds more than"):
        loads(text)


@pytest.mark.parametrize(
    "value",
    [
        "[{,\\" * MAX_VALUES,
        {'"[' * MAX_CONTAINERS: ["]", '\\"[,' * MAX_VALUES]},
        [[]] * (MAX_CONTAINERS - 1),
        [1] * MAX_VALUES,
    ],
    ids=["text", "escapes", "arrays", "numbers"],
)
def test_what_stands_in_strings_does_not_count(value: Any) -> None:
    assert loads(orjson.dumps(value)) == value


def test_a_broken_text_is_gone_through_once() -> None:
    with pytest.raises(BadRequest):
        loads(b"[" + b"{" * (MAX_CONTAINERS // 2) + b"," * MAX_VALUES + b'"' + b'\\"' * 500_000)


async def test_a_body_of_very_many_members_gets_a_short_answer(fleet: Fleet) -> None:
    body = {f"member-{number}": 1 for number in range(50_000)}
    for path in (EXECUTIONS, f"{SKILLS}/install", f"{SKILLS}/keys"):
        response = await fleet.api.post(path, json=body)
        assert response.status_code == 422
        assert len(response.content) < 1000
    assert (await fleet.api.put(f"{SKILLS}/settings", json=body)).status_code == 422


async def test_a_request_s_faults_are_listed_up_to_a_limit(fleet: Fleet) -> None:
    response = await fleet.api.post(EXECUTIONS, json={f"m-{number}": 1 for number in range(200)})
    assert response.status_code == 422
    assert len(response.json()["violations"]) == 100


async def test_a_body_that_does_not_come_is_given_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "BODY_S", 0.1)

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    response = await fleet.api.post(EXECUTIONS, content=body())
    assert response.status_code == 400
    assert "did not arrive within" in response.json()["error"]


async def test_a_page_carries_so_many_bytes_and_marks_the_rest(fleet: Fleet) -> None:
    await fleet.install(schema={"input": {"type": "object"}})
    text = "x" * (900 * 1024)
    count = PAGE_BYTES // len(text) + 3
    for _ in range(count):
        made = await fleet.submit(input={"text": text})
        await fleet.run(made["id"], output={"n": 1})
    response = await fleet.api.get(EXECUTIONS, params={"limit": 200})
    assert len(response.content) < PAGE_BYTES + 1_000_000
    rows = response.json()["data"]
    whole = [row["input"] == {"text": text} and row["output"] == {"n": 1} for row in rows]
    assert len(rows) == count
    assert whole == sorted(whole, reverse=True), "the newest come whole"
    assert 0 < sum(whole) < count
    assert rows[-1]["input"] == rows[-1]["output"] == {"truncated": True}
    single = await fleet.dispatcher.get(UUID(rows[-1]["id"]))
    assert single.input == {"text": text}


async def test_a_page_without_much_in_it_is_whole(fleet: Fleet) -> None:
    await fleet.install()
    made = await fleet.submit(input={"text": "a"})
    (row,) = await history.page(fleet.dispatcher.pool, history.Filter(), limit=10, before=None)
    assert (str(row.id), row.input, row.output) == (made["id"], {"text": "a"}, None)


async def test_a_skill_outside_a_key_s_list_is_not_known_to_be_off(fleet: Fleet) -> None:
    await fleet.install("mine")
    other = await fleet.install("other")
    await fleet.api.put(f"{SKILLS}/{other['id']}", json={"enabled": False})
    _, headers = await fleet.key(allowed=["mine"])
    for named in ({"skillName": "other"}, {"skillId": other["id"]}, {"skillName": "nothing"}):
        body = json.dumps({**named, "input": {}})
        response = await fleet.api.post(EXECUTIONS, content=body, headers={**headers, **ASYNC})
        assert response.status_code == 404
        assert response.json()["code"] == "skill_not_found"


async def test_a_key_s_list_narrows_the_versions_that_a_name_may_mean(fleet: Fleet) -> None:
    await fleet.install("echo", version="1.0.0")
    await fleet.install("echo", version="2.0.0")
    _, headers = await fleet.key(allowed=["echo@1.0.0"])
    for name in ("echo", "echo@>=1.0.0", "echo@1.0.0"):
        assert (await fleet.submit(headers, skillName=name))["skillVersion"] == "1.0.0"
