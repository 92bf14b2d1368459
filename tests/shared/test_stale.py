import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from shared import presence, stale
from shared.db import transaction
from shared.executions import Ending, Executions
from shared.presence import Presence
from shared.states import Status
from tests.factories import claim_one, new_execution, row, submit

ECHO = ["echo"]


@pytest.fixture
def executions(pool: "asyncpg.Pool[asyncpg.Record]") -> Executions:
    return Executions(pool, ECHO)


def worker(name: str = "worker-a") -> Presence:
    return Presence(
        id=name,
        host="h",
        pid=1,
        queues=("direct",),
        handlers=("echo",),
        slots=1,
        running=0,
        sandbox=None,
        lease_ms=10_000,
        rates={},
        consuming=True,
    )


async def reap(pool: "asyncpg.Pool[asyncpg.Record]") -> stale.Reaped:
    async with transaction(pool) as connection:
        return await stale.reap(connection)


async def running(executions: Executions, **changes: Any) -> UUID:
    execution_id = await submit(executions, **changes)
    assert await claim_one(executions, execution_id, "worker-a") is not None
    return execution_id


async def test_the_work_of_a_live_worker_is_left_alone(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    await presence.beat(pool, worker())
    await running(executions)
    assert await reap(pool) == stale.Reaped([], [])


@pytest.mark.parametrize(
    "end",
    [
        "DELETE FROM workers",
        "UPDATE workers SET stopped_at = clock_timestamp()",
        "UPDATE workers SET heartbeat_at = clock_timestamp() - interval '13 seconds'",
    ],
    ids=["no presence", "stopped", "silent"],
)
async def test_the_work_of_a_lost_worker_is_retried_or_ended(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions, end: str
) -> None:
    await presence.beat(pool, worker())
    again = await running(executions, idempotent=True, priority="high")
    over = await running(executions, idempotent=False)
    spent = await running(executions, idempotent=True, max_retries=0)
    await pool.execute(end)

    reaped = await reap(pool)
    assert [entry.execution_id for entry in reaped.again] == [again]
    assert (reaped.again[0].attempt, reaped.again[0].priority) == (1, "high")
    assert set(reaped.ended) == {over, spent}

    back = await row(pool, again)
    assert (back["status"], back["worker_id"], back["error_code"]) == ("pending", None, None)
    ended = await row(pool, over)
    assert (ended["status"], ended["error_code"]) == ("error", "worker_lost")
    assert "submit it again" in ended["error_message"]
    assert ended["started_at"] <= ended["finished_at"]
    assert ended["duration_ms"] >= 0
    for found in (back, ended):
        (entry,) = found["attempts"]
        assert entry.pop("durationMs") >= 0
        assert entry.pop("startedAt") <= entry.pop("finishedAt")
        assert entry == {
            "attempt": 1,
            "outcome": "failed",
            "errorCode": "worker_lost",
            "errorMessage": "The worker that ran this execution was lost",
            "workerId": "worker-a",
        }


async def test_a_worker_lost_again_and_again_uses_up_the_budget_and_hand_backs_do_not(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    execution_id = await running(executions, max_retries=2)
    await executions.finish(
        Ending(
            id=execution_id,
            attempt=1,
            worker_id="worker-a",
            status=Status.PENDING,
            history='{"outcome": "handed_back"}',
        )
    )
    for _ in range(2):
        assert await claim_one(executions, execution_id, "worker-a") is not None
        assert (await reap(pool)).again
    assert await claim_one(executions, execution_id, "worker-a") is not None
    assert (await reap(pool)).ended == [execution_id]
    ended = await row(pool, execution_id)
    assert (ended["attempt"], len(ended["attempts"])) == (4, 4)


async def test_a_worker_disowns_old_claims_that_it_does_not_hold(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    await presence.beat(pool, worker())
    held, forgotten, fresh = [await running(executions) for _ in range(3)]
    await pool.execute(
        "UPDATE skill_executions SET started_at = started_at - interval '1 minute' WHERE id <> $1",
        fresh,
    )
    async with transaction(pool) as connection:
        reaped = await stale.disown(connection, "worker-a", {held}, 10.0)
    assert [entry.execution_id for entry in reaped.again] == [forgotten]
    assert (await row(pool, held))["status"] == "running"


async def test_reapers_that_meet_share_the_rows_and_wait_for_nobody(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    ids = [await running(executions) for _ in range(20)]
    found = await asyncio.gather(*(reap(pool) for _ in range(4)))
    again = [entry.execution_id for reaped in found for entry in reaped.again]
    assert sorted(again) == sorted(ids)


async def test_pending_rows_past_their_time_end_as_expired(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    late = datetime.now(UTC) - timedelta(seconds=1)
    over = await submit(executions, expires_at=late)
    await submit(executions, expires_at=late + timedelta(hours=1))
    async with transaction(pool) as connection:
        assert [e.execution_id for e in await stale.expire(connection)] == [over]
        assert await stale.expire(connection) == []
    ended = await row(pool, over)
    assert (ended["status"], ended["error_code"], ended["attempt"]) == ("error", "expired", 0)
    assert ended["finished_at"] is not None


async def test_waiting_rows_are_those_that_a_claim_would_take(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    ready = [await submit(executions) for _ in range(3)]
    await submit(executions, not_before=soon)
    await submit(executions, expires_at=soon - timedelta(hours=2))
    await submit(executions, handler="nobody-s")
    await running(executions)
    found = await stale.waiting(pool, ECHO, 0.0)
    assert [entry.execution_id for entry in found] == ready
    rest = await stale.waiting(pool, ECHO, 0.0, after=ready[0])
    assert [entry.execution_id for entry in rest] == ready[1:]
    assert await stale.waiting(pool, ECHO, 60.0) == []


async def test_a_row_tells_the_handler_that_it_waits_for(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    waits = await submit(executions, handler="rare")
    runs = await running(executions)
    assert await stale.waiting_for(pool, [waits, runs]) == {waits: "rare"}


async def test_expired_keys_are_forgotten_and_others_kept(
    pool: "asyncpg.Pool[asyncpg.Record]", executions: Executions
) -> None:
    for key, ttl_ms in (("old", -1), ("young", 60_000)):
        await executions.create(new_execution(key=key, key_ttl_ms=ttl_ms, input_digest="d"))
    await stale.forget_keys(pool)
    assert [r["key"] for r in await pool.fetch("SELECT key FROM execution_keys")] == ["young"]


async def test_missing_partitions_are_made_ahead_and_again_is_no_harm(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    last = await pool.fetchval(
        "SELECT relname FROM pg_class WHERE relname ~ 'skill_executions_[0-9]{4}_[0-9]{2}$' "
        "ORDER BY relname DESC LIMIT 1"
    )
    await pool.execute(f"DROP TABLE {last}")
    for _ in range(2):
        async with transaction(pool) as connection:
            await stale.add_partitions(connection)
    assert await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", last)
