import asyncio
from dataclasses import replace

import asyncpg

from shared import skills
from shared.announce import BuiltinSkill, HandlerInfo, announce
from shared.models import SkillUpdate

INFO = HandlerInfo(
    name="file_read",
    version="1.0.0",
    description="Reads a file.",
    queue="direct",
    timeout_ms=None,
    max_timeout_ms=60_000,
    timeout_input="timeoutMs",
    max_retries=1,
    idempotent=True,
    retry_on_timeout=False,
)
SKILL = BuiltinSkill(schema={"input": {"type": "object"}}, policy="manual", tags=("files",))


async def epoch(pool: "asyncpg.Pool[asyncpg.Record]") -> int:
    return int(await pool.fetchval("SELECT epoch FROM registry_epoch"))


async def installed(pool: "asyncpg.Pool[asyncpg.Record]") -> list[tuple[str, str, str, bool]]:
    found = await skills.page(pool, q=None, mode=None, source=None, limit=9)
    return [(s.identity, s.mode, s.policy, s.enabled) for s in found]


async def test_a_built_in_brings_its_skill_along_the_first_time(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    assert await announce(pool, [(INFO, SKILL), (replace(INFO, name="plain"), None)])
    assert await installed(pool) == [("file_read@1.0.0", "auto", "manual", True)]
    (skill,) = await skills.page(pool, q=None, mode=None, source=None, limit=9)
    assert (skill.api_key_id, skill.source_provider, skill.tags) == ("system", "local", ("files",))
    assert (skill.timeout_ms, skill.max_retries, skill.idempotent) == (None, None, None)


async def test_the_same_announcement_again_changes_nothing_and_wakes_nobody(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    await announce(pool, [(INFO, SKILL)])
    before = await epoch(pool)
    assert not await announce(pool, [(INFO, SKILL)])
    assert await epoch(pool) == before


async def test_a_restart_keeps_what_an_operator_changed_or_deleted(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    await announce(pool, [(INFO, SKILL)])
    (skill,) = await skills.page(pool, q=None, mode=None, source=None, limit=9)
    await skills.update(pool, skill.id, SkillUpdate(enabled=False, policy="auto"), "operator")
    await announce(pool, [(INFO, SKILL)])
    assert await announce(pool, [(replace(INFO, max_retries=5), SKILL)])
    assert await installed(pool) == [("file_read@1.0.0", "off", "auto", False)]
    await skills.remove(pool, skill.id, "operator")
    assert await announce(pool, [(replace(INFO, max_retries=6), SKILL)])
    assert await installed(pool) == []


async def test_a_new_version_of_a_built_in_comes_beside_the_old_one(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    await announce(pool, [(INFO, SKILL)])
    before = await epoch(pool)
    await announce(pool, [(replace(INFO, version="1.1.0"), SKILL)])
    assert {identity for identity, *_ in await installed(pool)} == {
        "file_read@1.0.0",
        "file_read@1.1.0",
    }
    assert await epoch(pool) > before


async def test_workers_that_start_together_do_not_get_in_each_other_s_way(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    offered = [(replace(INFO, name=f"h{n}"), SKILL) for n in range(10)]
    changed = await asyncio.gather(
        *(announce(pool, offered[::step]) for step in (1, -1, 1, -1, 1, -1))
    )
    assert any(changed)
    assert len(await installed(pool)) == 9
    assert await pool.fetchval("SELECT count(*) FROM handlers") == 10
    assert await skills.count(pool, q=None, mode=None, source=None) == 10


async def test_forgetting_every_handler_wakes_the_registries(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    await announce(pool, [(INFO, None)])
    before = await epoch(pool)
    await pool.execute("TRUNCATE handlers")
    assert await epoch(pool) > before
