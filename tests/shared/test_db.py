from pathlib import Path

import asyncpg
import pytest
from pydantic_core import from_json
from uuid_utils.compat import uuid7

from shared import db
from shared.errors import ConfigurationError, Unavailable
from shared.executions import CLAIM, FINISH
from tests.factories import MANY_ROWS, make_settings

NAMES, TEXT, NULL, ONE = "ARRAY[]::text[]", "ARRAY['success']", "ARRAY[NULL]", "ARRAY[1]"
WHO = f"ARRAY['{uuid7()}']::uuid[]"


@pytest.mark.parametrize("url", ["mysql://localhost/x", "postgresql://localhost:port/x"])
async def test_what_is_no_postgres_url_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SKILLS_DATABASE_URL is not a Postgres URL"):
        await db.connect(make_settings(url), name="test")


async def test_a_server_that_is_away_is_named_without_the_password(tmp_path: Path) -> None:
    for url, place in (
        ("postgresql://u:hush-hush@127.0.0.1:1/x", "127.0.0.1"),
        (f"postgresql://u:hush-hush@/x?host={tmp_path}", ""),
    ):
        with pytest.raises(Unavailable, match=f"can't be reached .*{place}.*SKILLS_") as caught:
            await db.connect(make_settings(url), name="test")
        assert "hush-hush" not in caught.value.message


@pytest.mark.parametrize(
    ("door", "given"),
    [
        (CLAIM, f"{WHO}, 'w', {TEXT}, {NAMES}, {NAMES}, {NAMES}"),
        (
            FINISH,
            f"{WHO}, {ONE}, {TEXT}, {TEXT}, {NULL}, {NULL}, {NULL}, {ONE}, {NULL}, {ONE}",
        ),
    ],
    ids=["claim", "finish"],
)
async def test_what_was_planned_while_a_partition_was_empty_reads_little_of_a_full_one(
    pool: "asyncpg.Pool[asyncpg.Record]", door: str, given: str
) -> None:
    async with pool.acquire() as connection:
        await connection.execute(f"PREPARE door AS {door}")
        await connection.execute(f"EXECUTE door ({given})")
        await connection.execute(MANY_ROWS, uuid7())
        explained = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE door ({given})"
        )
        await connection.execute("DEALLOCATE door")
    plan = from_json(explained)[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100
