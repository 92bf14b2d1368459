"""Through the whole OpenAPI document with two keys: none is answered with the other's data."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from dispatcher.routing import PUBLIC
from shared.settings import load
from tests.dispatcher.fleet import Fleet, client, opened
from tests.services import MANAGEMENT_TOKEN

BODIES: dict[str, dict[str, Any]] = {
    "submit_execution": {"skillName": "private", "input": {"text": "x"}},
    "submit_executions": {"executions": [{"skillName": "private", "input": {"text": "x"}}]},
    "cancel_executions": {"skillName": "private"},
    "install_skill": {"name": "intruder", "handlerCode": "echo-handler"},
    "update_skill": {"mode": "off"},
    "put_settings": {"skillsEnabled": False},
    "add_pause": {"kind": "owner", "name": "intruder"},
    "change_key": {"weight": 2},
    "create_key": {"name": "intruder", "scopes": ["manage"]},
}
"""A good body for each operation that takes one; a new operation needs an entry."""


@pytest.fixture
async def fleet(database_url: str, redis_url: str) -> AsyncIterator[Fleet]:
    settings = load(
        database={"url": database_url},
        redis={"url": redis_url},
        management={"token": MANAGEMENT_TOKEN},
    )
    async with opened(settings) as found:
        yield found


async def test_no_operation_answers_one_key_with_the_others_data(fleet: Fleet) -> None:
    id_a, a = await fleet.key()
    id_b, b = await fleet.key()
    skill = await fleet.install("private", apiKeyId=id_b, schema={"input": {"type": "object"}})
    body = {"text": "the-secret-of-b"}
    made = await fleet.submit(b, skillName="private", input=body, sessionId="session-of-b")
    await fleet.run(made["id"])
    known = {
        "execution_id": made["id"],
        "skill_id": skill["id"],
        "name": "private",
        "key_id": id_b,
        "kind": "skill",
        "owner": id_b,
        "erasure_id": str(uuid4()),
    }
    before = await fingerprint(fleet)
    walked = 0
    async with client(fleet.app, None) as stranger:
        for path, method, operation in await operations(fleet):
            request = prepared(path, method, operation, known, owner=id_b)
            scope = operation["x-required-scope"]
            if scope == PUBLIC:
                continue
            walked += 1
            nobody = await stranger.request(**request)
            assert nobody.status_code == 401, (method, path)
            answer = await stranger.request(**{**request, "headers": {**request["headers"], **a}})
            if scope == "manage":
                assert answer.status_code == 403, (method, path)
            assert answer.status_code < 500
            for secret in ("the-secret-of-b", "session-of-b", made["id"], skill["id"]):
                told = answer.text.replace(answer.json().get("instance", "-"), "")
                told = told.replace(f"Execution not found: {secret}", "")
                assert secret not in told, (method, path)
    assert walked >= 15
    assert await fingerprint(fleet) == before
    mine = (await fleet.api.get("/api/skills/executions", headers=a)).json()["data"]
    assert mine == []
    assert id_a != id_b


async def test_management_reaches_every_operation(fleet: Fleet) -> None:
    skill = await fleet.install("private")
    made = await fleet.submit(skillName="private", input={})
    key_id, _ = await fleet.key()
    known = {"execution_id": made["id"], "skill_id": skill["id"], "name": "private"}
    known |= {"key_id": key_id, "kind": "skill"}
    known |= {"owner": "somebody", "erasure_id": str(uuid4())}
    for path, method, operation in await operations(fleet):
        request = prepared(path, method, operation, known, owner="system")
        answer = await fleet.api.request(**request)
        # what an earlier operation removed is gone, or switched off; refused it is not
        assert answer.status_code not in (401, 403, 405, 415), (method, path, answer.text)
        assert answer.status_code < 500 or answer.json()["code"] == "skills_disabled"


async def operations(fleet: Fleet) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what the document lists."""
    document = (await fleet.api.get("/openapi.json")).json()
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def prepared(
    path: str, method: str, operation: dict[str, Any], known: dict[str, str], *, owner: str
) -> dict[str, Any]:
    """Return a good request for an operation, about somebody's things."""
    query = {}
    for found in operation.get("parameters", ()):
        if found["in"] == "path":
            path = path.replace("{" + found["name"] + "}", known[found["name"]])
        elif found["name"] == "apiKeyId":
            query["apiKeyId"] = owner
    request = {"method": method.upper(), "url": path, "params": query}
    if "requestBody" in operation:
        body = BODIES[operation["operationId"]]
        owning = operation["operationId"] in ("submit_execution", "cancel_executions")
        owned = {"apiKeyId": owner} if owning else {}
        request["json"] = {**body, **owned}
    return {**request, "headers": {"Prefer": "respond-async"}}


async def fingerprint(fleet: Fleet) -> list[Any]:
    """Return what no intruder may change."""
    pool = fleet.dispatcher.pool
    return [
        await pool.fetchval(
            f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} AS t"
        )
        for table in ("skills", "skill_executions", "settings", "audit")
    ] + [await pool.fetchval("SELECT count(*) FROM api_keys WHERE revoked_at IS NULL")]
