from typing import Any

import pytest

from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet, bearer

SETTINGS, KEYS = f"{SKILLS}/settings", f"{SKILLS}/keys"


async def test_settings_are_read_and_changed_and_null_takes_the_default_back(fleet: Fleet) -> None:
    before = (await fleet.api.get(SETTINGS)).json()
    assert (before["skillsEnabled"], before["executionTimeoutMs"]) == (True, 30000)
    changed = (await fleet.api.put(SETTINGS, json={"executionTimeoutMs": 700})).json()
    assert changed == {**before, "executionTimeoutMs": 700}
    assert (await fleet.api.get(SETTINGS)).json() == changed
    assert (await fleet.api.put(SETTINGS, json={"executionTimeoutMs": None})).json() == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"unheardOf": 1}, 422),
        ({"unheardOf": None}, 422),
        ({"skills_enabled": False}, 422),
        ({"executionTimeoutMs": 0}, 422),
        ({"skillsEnabled": False, "maxRetries": "many"}, 422),
        ({"skillsProvider": "elsewhere"}, 422),
    ],
)
async def test_settings_that_are_not_valid_change_nothing(
    fleet: Fleet, body: dict[str, Any], status: int
) -> None:
    before = (await fleet.api.get(SETTINGS)).json()
    assert (await fleet.api.put(SETTINGS, json=body)).status_code == status
    assert (await fleet.api.get(SETTINGS)).json() == before


async def test_a_secret_setting_is_written_and_never_read_back(fleet: Fleet) -> None:
    for response in (
        await fleet.api.put(SETTINGS, json={"skillsmpApiKey": "sk-very-secret"}),
        await fleet.api.get(SETTINGS),
    ):
        assert response.json()["skillsmpApiKey"] == "********"
        assert "very-secret" not in response.text


async def test_a_key_is_shown_once_works_and_is_gone_after_its_revocation(fleet: Fleet) -> None:
    body = {"name": "gateway", "scopes": ["read:skills"], "allowedSkills": ["echo"]}
    response = await fleet.api.post(KEYS, json=body)
    assert response.status_code == 201
    made = response.json()
    secret = made.pop("key")
    listed = await fleet.api.get(KEYS)
    assert [row["id"] for row in listed.json()["data"]] == [made["id"]]
    assert secret not in listed.text
    assert (await fleet.api.get(EXECUTIONS, headers=bearer(secret))).status_code == 200
    assert (await fleet.api.delete(f"{KEYS}/{made['id']}")).json() == {"success": True}
    assert (await fleet.api.get(EXECUTIONS, headers=bearer(secret))).status_code == 401
    assert (await fleet.api.get(KEYS)).json()["data"][0]["revokedAt"] is not None


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["everything"]},
        {"name": "", "scopes": ["manage"]},
        {"name": "x", "scopes": ["manage"], "expiresAt": "2001-01-01T00:00:00Z"},
        {"name": "x", "scopes": ["manage"], "expiresAt": "tomorrow"},
    ],
)
async def test_a_key_that_could_not_be_used_is_not_made(fleet: Fleet, body: dict[str, Any]) -> None:
    assert (await fleet.api.post(KEYS, json=body)).status_code == 422
    assert (await fleet.api.get(KEYS)).json()["data"] == []


async def test_keys_are_paged_newest_first(fleet: Fleet) -> None:
    made = [(await fleet.key())[0] for _ in range(5)]
    seen = []
    cursor = None
    while True:
        query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await fleet.api.get(KEYS, params=query)).json()
        seen += [row["id"] for row in page["data"]]
        if (cursor := page["nextCursor"]) is None:
            break
    assert seen == made[::-1]
    counted = (await fleet.api.get(KEYS, params={"page": 3, "limit": 2})).json()
    assert (counted["total"], counted["totalPages"], len(counted["data"])) == (5, 3, 1)
