from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from shared import skills
from shared.errors import NotFound, SkillExists
from shared.models import Skill, SkillUpdate
from tests.factories import install


async def test_a_name_and_version_is_taken_once_an_owner(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    first = await install(pool, "s", description="one", timeout_ms=5)
    await install(pool, "s", api_key_id="k")
    await install(pool, "s", version="1.0.1")
    with pytest.raises(SkillExists, match=r"s@1\.0\.0.*replace"):
        await install(pool, "s", description="two")
    again = await install(pool, "s", description="two", replace=True, mode="off")
    assert (again.id, again.description, again.timeout_ms) == (first.id, "two", None)
    assert (again.mode, again.enabled) == ("off", False)
    assert again.updated_at > first.updated_at


SWITCHES: list[tuple[list[dict[str, Any]], bool, str]] = [
    ([{"enabled": False}], False, "off"),
    ([{"enabled": False}, {"enabled": True}], True, "auto"),
    ([{"enabled": False}, {"enabled": False}, {"enabled": True}], True, "auto"),
    ([{"mode": "off"}], False, "off"),
    ([{"mode": "off"}, {"enabled": True}], True, "auto"),
    ([{"mode": "off"}, {"mode": "off"}, {"enabled": True}], True, "auto"),
    ([{"mode": "on"}, {"enabled": False}, {"enabled": True}], True, "on"),
    ([{"enabled": False}, {"mode": "on"}], True, "on"),
    ([{"enabled": True, "mode": "off"}], True, "off"),
    ([{"enabled": True, "mode": "off"}, {"enabled": True}], True, "auto"),
    ([{"enabled": False, "mode": "auto"}], False, "auto"),
    ([{"enabled": False, "mode": "auto"}, {"enabled": True}], True, "auto"),
    ([{"enabled": False}, {"description": "x"}, {"enabled": True}], True, "auto"),
]


@pytest.mark.parametrize(("changes", "enabled", "mode"), SWITCHES)
async def test_enabled_and_mode_move_together_and_auto_is_not_lost(
    pool: "asyncpg.Pool[asyncpg.Record]", changes: list[dict[str, Any]], enabled: bool, mode: str
) -> None:
    skill = await install(pool, "s", mode="auto")
    for change in changes:
        skill = await skills.update(pool, skill.id, SkillUpdate(**change), "test")
    assert (skill.enabled, skill.mode) == (enabled, mode)


async def test_an_update_changes_what_was_sent_and_null_takes_the_default_back(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    skill = await install(pool, "s", timeout_ms=5, max_retries=2, tags=("a",))
    changed = await skills.update(
        pool, skill.id, SkillUpdate(timeout_ms=None, tags=("b", "c")), "test"
    )
    assert (changed.timeout_ms, changed.max_retries, changed.tags) == (None, 2, ("b", "c"))
    assert await skills.get(pool, skill.id) == changed


async def test_what_is_not_there_is_not_found(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    nobody = uuid4()
    for attempt in (
        skills.get(pool, nobody),
        skills.remove(pool, nobody, "test"),
        skills.update(pool, nobody, SkillUpdate(enabled=True), "test"),
    ):
        with pytest.raises(NotFound, match=str(nobody)):
            await attempt


async def test_every_change_is_written_down_with_who_made_it(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    skill = await install(pool, "s")
    await skills.update(pool, skill.id, SkillUpdate(mode="auto"), "bob")
    await skills.remove(pool, skill.id, "eve")
    found = await pool.fetch("SELECT actor, action, target, detail FROM audit ORDER BY id")
    assert [(r["actor"], r["action"]) for r in found] == [
        ("test", "skill.install"),
        ("bob", "skill.update"),
        ("eve", "skill.remove"),
    ]
    assert {r["target"] for r in found} == {str(skill.id)}
    assert found[1]["detail"] == {"mode": "auto"}


async def listed(pool: "asyncpg.Pool[asyncpg.Record]", **narrowed: Any) -> list[str]:
    asked: dict[str, Any] = {"q": None, "mode": None, "source": None, "limit": 50, **narrowed}
    found = await skills.page(pool, **asked)
    counted: dict[str, Any] = {name: asked[name] for name in ("q", "mode", "source")}
    if asked["limit"] == 50 and "after" not in narrowed:
        assert await skills.count(pool, **counted) == len(found)
    return [skill.name for skill in found]


async def test_a_list_is_searched_narrowed_and_paged(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    made: dict[str, Skill] = {}
    kinds: dict[str, dict[str, Any]] = {
        "alpha": {"description": "100% sure"},
        "beta_x": {"tags": ("git_hub",), "mode": "auto"},
        "gamma": {"mode": "off"},
    }
    for name, fields in kinds.items():
        made[name] = await install(pool, name, **fields)
    assert await listed(pool) == ["alpha", "beta_x", "gamma"]
    assert await listed(pool, q="ALPHA") == ["alpha"]
    assert await listed(pool, q="%") == ["alpha"], "a wildcard is looked for as it is"
    assert await listed(pool, q="_") == ["beta_x"]
    assert await listed(pool, q="hub") == ["beta_x"]
    assert await listed(pool, mode="off") == ["gamma"]
    assert await listed(pool, source="skillsmp") == []
    alpha = made["alpha"]
    after: tuple[str, str, UUID] = (alpha.name, alpha.api_key_id, alpha.id)
    assert await listed(pool, after=after) == ["beta_x", "gamma"]
    assert await listed(pool, limit=1, offset=1) == ["beta_x"]
