from typing import Any

import asyncpg
import pytest

from shared import live
from shared.errors import InvalidInput
from shared.live import MASK, LiveSettings


async def test_without_rows_the_defaults_hold(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    found = await live.read(pool)
    assert found == LiveSettings()
    assert (found.skills_enabled, found.execution_timeout_ms, found.max_retries) == (
        True,
        30_000,
        3,
    )


async def test_what_is_put_is_read_and_null_takes_the_default_back(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    changes = {"skillsEnabled": False, "executionTimeoutMs": 1000, "toolAliases": {"a": "b"}}
    put = await live.put(pool, changes, "somebody")
    assert put == await live.read(pool)
    assert (put.skills_enabled, put.execution_timeout_ms, put.tool_aliases) == (
        False,
        1000,
        {"a": "b"},
    )
    assert (await live.put(pool, {"skillsEnabled": None}, "x")).skills_enabled is True
    rows = await pool.fetch("SELECT updated_by FROM settings")
    assert {row["updated_by"] for row in rows} == {"somebody"}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"executionTimeoutMs": 0}, "/executionTimeoutMs"),
        ({"skillsEnabled": "perhaps"}, "/skillsEnabled"),
        ({"skillEnabled": True}, "/skillEnabled"),
        ({"skills_enabled": False}, "/skills_enabled"),
        ({"nothing/known~": None}, "/nothing~1known~0"),
        ({"toolAliases": {"a/b": 1}}, "/toolAliases/a~1b"),
    ],
)
async def test_a_wrong_change_is_named_and_nothing_is_stored(
    pool: "asyncpg.Pool[asyncpg.Record]", changes: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await live.put(pool, {"maxRetries": 1, **changes}, "test")
    assert [violation["pointer"] for violation in caught.value.violations] == [pointer]
    assert await live.read(pool) == LiveSettings()


async def test_a_setting_of_a_newer_program_is_left_alone(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    await pool.execute(
        "INSERT INTO settings (key, value, updated_by) VALUES ('fromTheFuture', '1', 'x')"
    )
    await live.put(pool, {"maxRetries": 1}, "test")
    assert (await live.read(pool)).max_retries == 1
    assert await pool.fetchval("SELECT count(*) FROM settings") == 2


async def test_a_secret_is_masked_and_its_mask_does_not_replace_it(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    put = await live.put(pool, {"skillsmpApiKey": "sk-1"}, "test")
    assert put.masked().skillsmp_api_key == MASK
    assert LiveSettings().masked().skillsmp_api_key is None
    again = await live.put(pool, {"skillsmpApiKey": MASK, "maxRetries": 2}, "test")
    assert (again.skillsmp_api_key, again.max_retries) == ("sk-1", 2)
