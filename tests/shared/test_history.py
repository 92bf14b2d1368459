from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
from pydantic_core import from_json
from uuid_utils.compat import uuid7

from shared import history
from shared.db import surveying
from shared.executions import Ending, Executions
from shared.history import Filter
from shared.states import Status
from tests.factories import MANY_ROWS, claim_one, new_execution

ECHO = ["echo"]


@pytest.fixture
def executions(pool: "asyncpg.Pool[asyncpg.Record]") -> Executions:
    return Executions(pool, ECHO)


async def test_an_execution_is_read_by_its_owner_and_by_nobody_else(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    new = new_execution(input='{"n": 9007199254740993}', model="m")
    await executions.create(new)
    found = await history.get(pool, new.id, "key-1")
    assert found is not None
    assert (found.status, found.input, found.model) == (
        Status.PENDING,
        {"n": 9007199254740993},
        "m",
    )
    assert not found.finished
    assert await history.get(pool, new.id, "key-2") is None
    assert await history.get(pool, new.id, None) == found
    assert await history.get(pool, uuid7(), None) is None


async def test_a_page_is_newest_first_and_goes_on_below_its_last_id(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    ids = []
    for n in range(5):
        new = new_execution(api_key_id=f"key-{n % 2}")
        await executions.create(new)
        ids.append(new.id)
    first = await history.page(pool, Filter(), limit=2, before=None)
    rest = await history.page(pool, Filter(), limit=10, before=first[-1].id)
    assert [found.id for found in [*first, *rest]] == ids[::-1]
    skipped = await history.page(pool, Filter(), limit=2, before=None, offset=2)
    assert [found.id for found in skipped] == ids[::-1][2:4]
    own = await history.page(pool, Filter(owner="key-0"), limit=10, before=None)
    assert [found.id for found in own] == [ids[4], ids[2], ids[0]]
    assert await history.count(pool, Filter(owner="key-0")) == 3


async def test_every_filter_narrows(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    odd = new_execution(skill_name="odd", session_id="s-1")
    await executions.create(odd)
    await executions.create(new_execution())
    claim = await claim_one(executions, odd.id, "w")
    assert claim is not None
    now = datetime.now(UTC)
    for narrowed in (
        Filter(skill_id=odd.skill_id),
        Filter(skill_name="odd"),
        Filter(status=Status.RUNNING),
        Filter(session_id="s-1"),
        Filter(skill_name="odd", status=Status.RUNNING, since=now - timedelta(hours=1)),
    ):
        assert [e.id for e in await history.page(pool, narrowed, limit=9, before=None)] == [odd.id]
    assert await history.count(pool, Filter(since=now + timedelta(hours=1))) == 0
    assert await history.count(pool, Filter(until=now - timedelta(hours=1))) == 0
    assert await history.count(pool, Filter(until=now + timedelta(hours=1))) == 2


async def test_rows_of_every_partition_are_listed_together(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    now, late = new_execution(), new_execution(id=UUID(int=uuid7().int | 0x7 << 125))
    for new in (now, late):
        await executions.create(new)
    found = await history.page(pool, Filter(owner="key-1"), limit=9, before=None)
    assert [execution.id for execution in found] == [late.id, now.id]
    assert await history.get(pool, late.id, "key-1") == found[0]


async def test_only_ended_executions_count_as_finished(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    ids = [new_execution() for _ in range(3)]
    for new in ids:
        await executions.create(new)
    for new in ids[:2]:
        await claim_one(executions, new.id, "w")
    await executions.finish(Ending(id=ids[0].id, attempt=1, worker_id="w", status=Status.TIMEOUT))
    assert await history.finished(pool, [new.id for new in ids]) == [ids[0].id]


async def test_a_page_reads_little_of_a_large_table_whatever_it_is_narrowed_to(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    skill, other = uuid7(), uuid7()
    await pool.execute(MANY_ROWS, skill)
    await pool.execute("ANALYZE skill_executions")
    size = await pool.fetchval(
        "SELECT sum(pg_relation_size(inhrelid)) / 8192 FROM pg_inherits "
        "WHERE inhparent = 'skill_executions'::regclass"
    )
    for narrowed in (
        Filter(),
        Filter(owner="key-7"),
        Filter(skill_id=skill),
        Filter(skill_id=other),
        *(Filter(skill_id=skill, status=status) for status in Status),
        *(Filter(skill_id=other, status=status) for status in Status),
    ):
        statement, arguments = history.paging(narrowed, 50, None, 0)
        async with surveying(pool) as connection:
            explained = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments
            )
        plan = from_json(explained)[0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < size / 4, narrowed
