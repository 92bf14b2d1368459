import asyncio
from typing import Any

import asyncpg
import pytest

from shared.executions import Created, Executions, Existing
from tests.factories import new_execution, pool_to
from tests.shared.doors import ECHO

# --- idempotency keys ---------------------------------------------------------------------------


def keyed(**changes: Any) -> Any:
    return new_execution(
        **{"key": "key:k", "key_ttl_ms": 60_000, "input_digest": "digest", **changes}
    )


async def test_fifty_at_once_with_one_key_make_one_row(
    database_url: str, executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    async with pool_to(database_url) as other:
        doors = [Executions(p, ECHO) for p in (pool, other) for _ in range(5)]
        made = await asyncio.gather(*(doors[n % 10].create(keyed()) for n in range(50)))
    created = [answer for answer in made if isinstance(answer, Created)]
    existing = [answer for answer in made if isinstance(answer, Existing)]
    assert (len(created), len(existing)) == (1, 49)
    ids = await pool.fetch("SELECT id FROM skill_executions")
    assert {answer.execution_id for answer in existing} == {record["id"] for record in ids}
    assert {answer.digest for answer in existing} == {"digest"}


async def test_one_key_twice_in_one_batch_belongs_to_the_first(executions: Executions) -> None:
    first, second, plain = keyed(input_digest="one"), keyed(input_digest="two"), new_execution()
    made = await asyncio.gather(*map(executions.create, (first, second, plain)))
    assert isinstance(made[0], Created)
    assert made[1] == Existing(first.id, "one")
    assert isinstance(made[2], Created)


async def test_another_owner_s_key_is_another_key(executions: Executions) -> None:
    assert isinstance(await executions.create(keyed()), Created)
    assert isinstance(await executions.create(keyed(api_key_id="key-2")), Created)


async def test_a_key_is_free_again_after_its_time(
    executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    old, new = keyed(), keyed(input_digest="other")
    await executions.create(old)
    await pool.execute("UPDATE execution_keys SET expires_at = clock_timestamp()")
    assert isinstance(await executions.create(new), Created)
    assert await executions.create(keyed()) == Existing(new.id, "other")


async def test_a_key_deleted_while_it_was_in_the_way_is_taken_over(
    executions: Executions, pool: "asyncpg.Pool[asyncpg.Record]", monkeypatch: pytest.MonkeyPatch
) -> None:
    await executions.create(keyed())
    find = executions._find_holders

    async def find_after_the_key_is_gone(rows: Any) -> Any:
        await pool.execute("DELETE FROM execution_keys")
        return await find(rows)

    monkeypatch.setattr(executions._holders, "_flush", find_after_the_key_is_gone)
    assert isinstance(await executions.create(keyed()), Created)
