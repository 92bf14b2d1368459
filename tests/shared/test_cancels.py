import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared import cancels
from shared.cancels import Counts
from shared.executions import Executions
from shared.history import Filter
from shared.queue import Entry, Queue
from shared.redis import CANCEL_CHANNEL, FINISHED_CHANNEL, Listener
from shared.states import Status
from tests.factories import claim_one, row, submit
from tests.shared.doors import claimed, ending
from tests.signals import until

Pool = asyncpg.Pool


class Ears:
    """What was published: ids by channel."""

    def __init__(self) -> None:
        self.said: dict[str, set[UUID]] = {CANCEL_CHANNEL: set(), FINISHED_CHANNEL: set()}

    async def heard(self, channel: str, text: str) -> None:
        self.said[channel] |= {UUID(part) for part in text.split()}

    async def hear(self, channel: str, *ids: UUID) -> None:
        async def there() -> bool:
            return self.said[channel] == set(ids)

        await until(there, f"{channel} names {ids}")


@pytest.fixture
async def ears(redis: Redis) -> AsyncIterator[Ears]:
    made, listener = Ears(), Listener(redis)
    for channel in made.said:
        listener.on(channel, made.heard)
    await listener.start()
    await asyncio.wait_for(listener.hearing.wait(), 20)
    yield made
    await listener.stop()


async def test_what_waits_ends_at_once_and_is_made_known(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis, ears: Ears
) -> None:
    execution_id = await submit(executions)
    queue, entry = Queue(redis), Entry(execution_id, 0, "direct", "normal")
    await queue.put([entry])
    done = await cancels.cancel(pool, redis, execution_id, "key-1", "key:key-1")
    assert done is not None
    assert (done.status, done.error_code) == (Status.ERROR, "cancelled")
    assert done.error_message == "The execution was cancelled"
    assert done.cancelled_by == "key:key-1"
    assert done.finished_at is not None
    await ears.hear(FINISHED_CHANNEL, execution_id)
    assert await claim_one(executions, execution_id, "worker-a") is None
    assert await queue.length("direct") == 0, "it takes no place in the queue any more"


@pytest.mark.parametrize(
    "waits",
    [
        "not_before = clock_timestamp() + interval '1 hour'",
        "retry_at = clock_timestamp() + interval '1 hour', attempt = 1",
        "approval = 'required'",
    ],
    ids=["its time", "a retry", "approval"],
)
async def test_whatever_it_waits_for(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis, waits: str
) -> None:
    execution_id = await submit(executions)
    await pool.execute(f"UPDATE skill_executions SET {waits} WHERE id = $1", execution_id)
    done = await cancels.cancel(pool, redis, execution_id, None, "management")
    assert done is not None
    assert (done.status, done.error_code, done.retry_at) == (Status.ERROR, "cancelled", None)


async def test_what_runs_is_marked_and_named_and_the_first_mark_stays(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis, ears: Ears
) -> None:
    claim = await claimed(executions)
    done = await cancels.cancel(pool, redis, claim.id, "key-1", "first")
    again = await cancels.cancel(pool, redis, claim.id, None, "second")
    assert done is not None
    assert (done.status, done.error_code, done.cancelled_by) == (Status.RUNNING, None, "first")
    assert again == done
    await ears.hear(CANCEL_CHANNEL, claim.id)
    assert await cancels.requested(pool, [claim.id, uuid7()], "worker-a") == [claim.id]
    assert await cancels.requested(pool, [claim.id], "worker-b") == []


async def test_a_hand_back_of_what_is_marked_ends_it(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis
) -> None:
    claim = await claimed(executions)
    await cancels.cancel(pool, redis, claim.id, None, "management")
    assert await executions.finish(ending(claim, Status.PENDING, output=None)) is Status.ERROR
    assert (await row(pool, claim.id))["error_code"] == "cancelled"


async def test_what_has_ended_or_is_another_s_is_left_as_it_is(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis
) -> None:
    claim = await claimed(executions)
    await executions.finish(ending(claim))
    waiting = await submit(executions)
    before = [await row(pool, claim.id), await row(pool, waiting)]
    assert await cancels.cancel(pool, redis, claim.id, None, "management") is None
    assert await cancels.cancel(pool, redis, waiting, "key-2", "key:key-2") is None
    assert await cancels.cancel(pool, redis, uuid7(), None, "management") is None
    assert [await row(pool, claim.id), await row(pool, waiting)] == before


async def test_a_row_that_is_being_claimed_is_met_running(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis
) -> None:
    execution_id = await submit(executions)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "UPDATE skill_executions SET status = 'running', attempt = 1 WHERE id = $1",
            execution_id,
        )
        cancelling = asyncio.create_task(cancels.cancel(pool, redis, execution_id, None, "m"))
        await until(lambda: waits_for_a_lock(pool), "the cancellation waits for the claim")
    done = await cancelling
    assert done is not None
    assert (done.status, done.cancelled_by) == (Status.RUNNING, "m")


async def waits_for_a_lock(pool: "Pool[asyncpg.Record]") -> Any:
    return await pool.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )


async def test_a_filter_cancels_what_it_leaves_in_batches_and_nothing_else(
    pool: "Pool[asyncpg.Record]",
    executions: Executions,
    redis: Redis,
    ears: Ears,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = cancels.CANCEL_SOME.replace(f"LIMIT {cancels.BATCH}", "LIMIT 2")
    monkeypatch.setattr(cancels, "CANCEL_SOME", small)
    waiting = [await submit(executions, session_id="s") for _ in range(5)]
    running = [(await claimed(executions, session_id="s")).id for _ in range(3)]
    over = await claimed(executions, session_id="s")
    await executions.finish(ending(over))
    others = [
        await submit(executions, session_id="other"),
        await submit(executions, session_id="s", api_key_id="key-2"),
    ]
    queue, narrowed = Queue(redis), Filter(owner="key-1", session_id="s")
    await queue.put([Entry(i, 0, "direct", "normal") for i in (*waiting, *others)])
    counts = await cancels.cancel_all(pool, redis, narrowed, "key:key-1")
    assert counts == Counts(ended=5, stopping=3)
    await ears.hear(FINISHED_CHANNEL, *waiting)
    await ears.hear(CANCEL_CHANNEL, *running)
    assert {(await row(pool, i))["error_code"] for i in waiting} == {"cancelled"}
    assert await queue.length("direct") == len(others)
    assert {(await row(pool, i))["status"] for i in running} == {"running"}
    assert {(await row(pool, i))["status"] for i in others} == {"pending"}
    assert await cancels.cancel_all(pool, redis, narrowed, "again") == Counts(0, 0)


async def test_a_locked_row_is_come_back_to(
    pool: "Pool[asyncpg.Record]", executions: Executions, redis: Redis
) -> None:
    locked, free = await submit(executions), await submit(executions)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM skill_executions WHERE id = $1 FOR UPDATE", locked)
        cancelling = asyncio.create_task(cancels.cancel_all(pool, redis, Filter(), "m"))

        async def free_is_over() -> bool:
            return bool((await row(pool, free))["status"] == "error")

        await until(free_is_over, "the free one does not wait for the locked one")
        assert not cancelling.done()
    assert await asyncio.wait_for(cancelling, 20) == Counts(ended=2)
