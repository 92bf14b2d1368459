import asyncio
from typing import Any

import pytest

from shared.settings import Settings
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet, opened
from tests.signals import until

INSTALL = f"{SKILLS}/install"


async def test_the_seeds_own_body_installs_a_skill(fleet: Fleet) -> None:
    await fleet.announce()
    response = await fleet.api.post(
        INSTALL,
        json={
            "name": "echo",
            "version": "1.2.3",
            "description": "Says it again.",
            "schema": {"input": {"content": "string"}, "output": {"type": "object"}},
            "handlerCode": "echo-handler",
            "apiKeyId": "key-1",
        },
    )
    assert response.status_code == 201
    body = response.json()
    assert body["success"] is True
    skill = body["skill"]
    assert body["id"] == skill["id"]
    assert (skill["apiKeyId"], skill["version"], skill["mode"]) == ("key-1", "1.2.3", "on")
    assert skill["schema"]["input"]["properties"] == {"content": {"type": "string"}}
    assert (await fleet.api.get(response.headers["Location"])).json()["skill"] == skill


async def test_a_handler_nobody_announced_is_refused_with_those_that_are_known(
    fleet: Fleet,
) -> None:
    await fleet.announce("one")
    await fleet.announce("two")
    response = await fleet.api.post(INSTALL, json={"name": "x", "handlerCode": "three"})
    assert (response.status_code, response.json()["code"]) == (400, "UNKNOWN_SKILL_HANDLER")
    assert response.json()["knownHandlers"] == ["one", "two"]


async def test_a_second_install_is_a_conflict_unless_it_replaces(fleet: Fleet) -> None:
    first = await fleet.install(description="first")
    body = {"name": "echo", "handlerCode": "echo-handler", "description": "second"}
    response = await fleet.api.post(INSTALL, json=body)
    assert (response.status_code, response.json()["code"]) == (409, "skill_exists")
    response = await fleet.api.post(INSTALL, json={**body, "replace": True})
    assert response.status_code == 201
    assert response.json()["skill"]["description"] == "second"
    assert response.json()["id"] == first["id"]


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"input": {"$ref": "http://169.254.169.254/latest"}},
        {"input": {"$ref": "file:///etc/passwd"}},
        {"input": {"properties": {"a": {"$ref": "other.json"}}}},
        {"input": {"type": "no-such-type"}},
        {"input": {"properties": {"a": {"type": "string", "pattern": "(a+)+$("}}}},
        {"input": {"minimum": "one"}},
        {"input": deep(40)},
        {"input": {"description": "x" * 70_000}},
        {"input": {"enum": ["x" * 9] * 9000}},
        {"input": {"properties": {"a\u0000b": {"type": "string"}}}},
        {"input": []},
        {"input": "no"},
        {"output": {"$ref": "https://elsewhere.test/x"}},
        {"inputs": {"type": "object"}},
        {"type": "object", "properties": {}},
    ],
)
async def test_a_hostile_schema_is_refused_and_nothing_is_written(
    fleet: Fleet, schema: dict[str, Any]
) -> None:
    await fleet.announce()
    body = {"name": "x", "handlerCode": "echo-handler", "schema": schema}
    response = await fleet.api.post(INSTALL, json=body)
    assert response.status_code == 422, response.text
    assert (await fleet.api.get(SKILLS)).json()["data"] == []


async def test_a_schemas_violations_point_into_the_body(fleet: Fleet) -> None:
    await fleet.announce()
    schema = {"input": {"properties": {"a": {"$ref": "http://x.test"}}}}
    body = {"name": "x", "handlerCode": "echo-handler", "schema": schema}
    problem = (await fleet.api.post(INSTALL, json=body)).json()
    assert problem["code"] == "invalid_schema"
    assert [found["pointer"] for found in problem["violations"]] == [
        "/schema/input/properties/a/$ref"
    ]


async def test_put_changes_what_is_sent_and_brings_the_mode_back(fleet: Fleet) -> None:
    skill = await fleet.install(mode="auto", timeoutMs=500)
    path = f"{SKILLS}/{skill['id']}"

    async def put(**changes: Any) -> tuple[bool, str]:
        response = await fleet.api.put(path, json=changes)
        assert response.status_code == 200, response.text
        found = response.json()["skill"]
        return found["enabled"], found["mode"]

    assert await put(enabled=False) == (False, "off")
    assert await put(enabled=True) == (True, "auto")
    assert await put(mode="off") == (False, "off")
    assert await put(mode="on") == (True, "on")
    assert await put(enabled=True, mode="off") == (True, "off")
    await put(timeoutMs=None, policy="manual")
    found = (await fleet.api.get(path)).json()["skill"]
    assert (found["timeoutMs"], found["policy"]) == (None, "manual")


async def test_an_empty_put_is_400_and_an_unknown_id_404(fleet: Fleet) -> None:
    skill = await fleet.install()
    assert (await fleet.api.put(f"{SKILLS}/{skill['id']}", json={})).status_code == 400
    other = "7f3f7d67-3c7f-4c2e-8a8e-0123456789ab"
    for method in ("GET", "PUT", "DELETE"):
        response = await fleet.api.request(method, f"{SKILLS}/{other}", json={"enabled": True})
        assert response.status_code == 404
    response = await fleet.api.put(f"{SKILLS}/{skill['id']}", json={"enabled": None})
    assert response.status_code == 422


async def test_removing_a_skill_keeps_its_executions(fleet: Fleet) -> None:
    skill = await fleet.install()
    made = await fleet.submit()
    assert (await fleet.api.delete(f"{SKILLS}/{skill['id']}")).json() == {"success": True}
    assert (await fleet.api.delete(f"{SKILLS}/{skill['id']}")).status_code == 404
    kept = (await fleet.api.get(f"{EXECUTIONS}/{made['id']}")).json()["execution"]
    assert (kept["skillName"], kept["skillVersion"]) == ("echo", "1.0.0")


async def test_versions_of_a_name_with_a_slash_highest_first_as_an_owner_sees_them(
    fleet: Fleet,
) -> None:
    name = "@scope/the.name"
    for version, owner in (("1.0.0", None), ("1.10.0", None), ("1.9.0", "key-1")):
        await fleet.install(name, version=version, **({"apiKeyId": owner} if owner else {}))
    for path in (f"{SKILLS}/{name}/versions", f"{SKILLS}/%40scope%2Fthe.name/versions"):
        found = (await fleet.api.get(path)).json()
        assert [row["version"] for row in found["data"]] == ["1.10.0", "1.0.0"]
        owned = (await fleet.api.get(path, params={"apiKeyId": "key-1"})).json()
        assert [row["version"] for row in owned["data"]] == ["1.10.0", "1.9.0", "1.0.0"]


async def test_unregistering_by_name_takes_the_owners_only(fleet: Fleet) -> None:
    for version, owner in (("1.0.0", "key-1"), ("2.0.0", "key-1"), ("1.0.0", None)):
        await fleet.install(version=version, **({"apiKeyId": owner} if owner else {}))
    path, mine = f"{SKILLS}/echo/versions", {"apiKeyId": "key-1"}
    one = await fleet.api.delete(path, params={**mine, "version": "1.0.0"})
    assert one.json() == {"success": True, "removed": 1}
    rest = await fleet.api.delete(path, params=mine)
    assert rest.json()["removed"] == 1
    assert (await fleet.api.delete(path, params=mine)).status_code == 404
    left = (await fleet.api.get(SKILLS)).json()["data"]
    assert [(row["apiKeyId"], row["version"]) for row in left] == [("system", "1.0.0")]


async def test_the_list_is_searched_and_filtered(fleet: Fleet) -> None:
    await fleet.install("alpha", tags=["red", "100%"], mode="auto")
    await fleet.install("beta", description="An ALPHA of its own")
    await fleet.install("gamma")

    async def names(**query: Any) -> list[str]:
        page = (await fleet.api.get(SKILLS, params=query)).json()
        return [row["name"] for row in page["data"]]

    assert await names(q="alpha") == ["alpha", "beta"]
    assert await names(q="100%") == ["alpha"]
    assert await names(q="%") == ["alpha"]
    assert await names(mode="auto") == ["alpha"]
    assert await names(source="local") == ["alpha", "beta", "gamma"]
    assert await names(source="skillsmp") == []
    assert (await fleet.api.get(SKILLS, params={"mode": "maybe"})).status_code == 422


async def test_a_write_in_one_process_is_seen_by_the_other_at_once(
    fleet: Fleet, settings: Settings
) -> None:
    skill = await fleet.install()
    async with opened(settings) as other:
        await other.submit()
        for mode in ("off", "on", "off", "on"):
            await fleet.api.put(f"{SKILLS}/{skill['id']}", json={"mode": mode})
            wanted = 409 if mode == "off" else 202

            async def seen(wanted: int = wanted) -> bool:
                body = {"skillName": "echo", "input": {"text": "x"}}
                headers = {"Prefer": "respond-async"}
                response = await other.api.post(EXECUTIONS, json=body, headers=headers)
                return response.status_code == wanted

            await until(seen, f"mode {mode} is in force in the other process", deadline_s=2)


async def test_installs_of_one_version_at_once_make_one_skill(fleet: Fleet) -> None:
    await fleet.announce()
    body = {"name": "echo", "handlerCode": "echo-handler"}
    answers = await asyncio.gather(*(fleet.api.post(INSTALL, json=body) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 9]
