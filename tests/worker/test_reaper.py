import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from shared import leader, live
from shared.redis import FINISHED_CHANNEL, queue_key
from shared.tasks import end
from tests.factories import claim_one, redis_to, room_in, row, submit
from tests.faults.proxy import proxied
from tests.signals import until
from worker import reaper
from worker.room import Room


@pytest.fixture
async def room(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Room]:
    monkeypatch.setattr(reaper, "UNHEARD_S", 0.0)
    worker = {"queues": ["direct"], "sweep_ms": 100, "lease_ms": 500}
    async with room_in(database_url, redis_url, tmp_path, worker=worker) as opened:
        await beats_for_ever(opened)
        yield opened


async def beats_for_ever(room: Room) -> None:
    """Make this worker count as there, whatever its lease."""
    await room.pool.execute("UPDATE workers SET heartbeat_at = 'infinity'")


async def queued(room: Room) -> list[str]:
    return [m.decode() for m in await room.redis.zrange(queue_key("direct"), 0, -1)]


async def lost(room: Room, **changes: Any) -> UUID:
    """Make a row that a worker without presence runs."""
    execution_id = await submit(room.executions, **changes)
    assert await claim_one(room.executions, execution_id, "worker-gone") is not None
    return execution_id


async def test_a_row_that_nobody_rang_for_is_rung_once(room: Room) -> None:
    execution_id = await submit(room.executions)
    await reaper.sweep(room)
    await reaper.sweep(room)
    assert await queued(room) == [f"{execution_id}.0"]


async def test_a_flushed_redis_loses_nothing(room: Room) -> None:
    ids = [await submit(room.executions) for _ in range(5)]
    await reaper.sweep(room)
    await room.redis.flushdb()
    await reaper.sweep(room)
    assert sorted(await queued(room)) == sorted(f"{i}.0" for i in ids)
    await room.redis.delete(queue_key("direct"))  # the bodies are left
    await reaper.sweep(room)
    assert sorted(await queued(room)) == sorted(f"{i}.0" for i in ids)


async def test_rows_for_nobody_here_or_for_later_are_not_rung(room: Room) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await submit(room.executions, handler="nobody-s")
    await submit(room.executions, not_before=later)
    await reaper.sweep(room)
    assert await queued(room) == []


async def test_switched_off_nothing_is_rung(room: Room) -> None:
    await submit(room.executions)
    await live.put(room.pool, {"skillsEnabled": False}, "test")
    await room.registry.changed()
    await reaper.sweep(room)
    assert await queued(room) == []


async def test_more_rows_than_a_page_are_rung(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.stale.WAITING", page_of(3))
    ids = [await submit(room.executions) for _ in range(10)]
    await reaper.sweep(room)
    assert sorted(await queued(room)) == sorted(f"{i}.0" for i in ids)


def page_of(rows: int) -> str:
    from shared import stale

    return stale.WAITING.replace(f"LIMIT {stale.BATCH}", f"LIMIT {rows}")


async def test_what_a_lost_worker_ran_is_rung_again_or_announced_as_ended(
    room: Room, redis_url: str
) -> None:
    again, over = await lost(room), await lost(room, idempotent=False)
    async with redis_to(redis_url) as redis, redis.pubsub() as ear:
        await ear.subscribe(FINISHED_CHANNEL)
        await reaper.sweep(room)

        async def heard() -> str | None:
            message = await ear.get_message(ignore_subscribe_messages=True)
            return str(message["data"].decode()) if message else None

        assert await until(heard, "the end is announced") == str(over)
    assert await queued(room) == [f"{again}.1"]
    assert (await row(room.pool, over))["error_code"] == "worker_lost"


def rounds() -> reaper.Rounds:
    return reaper.Rounds(steady_since=-3600.0, last=asyncio.get_running_loop().time())


async def test_what_expired_takes_no_place_in_the_queue_any_more(room: Room) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    over, stays = await submit(room.executions, expires_at=soon), await submit(room.executions)
    await reaper.sweep(room)
    assert await queued(room) == [f"{over}.0", f"{stays}.0"]
    past = "UPDATE skill_executions SET expires_at = clock_timestamp() WHERE id = $1"
    await room.pool.execute(past, over)
    await reaper.sweep(room)
    assert await queued(room) == [f"{stays}.0"]


async def test_one_leads_while_the_others_go_by_until_it_is_gone(room: Room) -> None:
    execution_id = await lost(room)
    assert await leader.lead(room.pool, "worker-other", 3600)
    await reaper.sweep_round(room, rounds())
    assert (await row(room.pool, execution_id))["status"] == "running"
    await room.pool.execute("UPDATE leader SET until = clock_timestamp()")
    await reaper.sweep_round(room, rounds())
    assert (await row(room.pool, execution_id))["status"] == "pending"
    assert not await leader.lead(room.pool, "worker-other", 1)
    await leader.resign(room.pool, room.id)
    assert await leader.lead(room.pool, "worker-other", 1)


async def test_after_an_outage_no_worker_is_lost_for_its_old_heartbeat(room: Room) -> None:
    execution_id = await lost(room)
    after = rounds()
    after.last -= 3600  # no round came through for an hour
    await reaper.sweep_round(room, after)
    assert (await row(room.pool, execution_id))["status"] == "running"
    after.steady_since -= 3600  # a lease later
    after.thorough = 0.0
    await reaper.sweep_round(room, after)
    assert (await row(room.pool, execution_id))["status"] == "pending"


async def test_a_worker_lost_between_two_thorough_rounds_is_noticed_in_the_next(room: Room) -> None:
    now = rounds()
    await reaper.sweep_round(room, now)
    before = now.thorough
    execution_id = await lost(room)
    await room.pool.execute(
        "INSERT INTO workers (id, host, pid, queues, handlers, slots, stopped_at) "
        "VALUES ('worker-gone', 'h', 1, '{}', '{}', 1, clock_timestamp())"
    )
    await reaper.sweep_round(room, now)
    assert now.thorough == before, "not by looking at everything"
    assert (await row(room.pool, execution_id))["status"] == "pending"


async def test_this_worker_s_own_rows_are_safe_while_it_holds_them(room: Room) -> None:
    execution_id = await submit(room.executions)
    await claim_one(room.executions, execution_id, room.id)
    await room.pool.execute(
        "UPDATE skill_executions SET started_at = started_at - interval '1 hour'"
    )
    room.held.add(execution_id)
    await reaper.disown(room)
    await reaper.sweep(room)
    assert (await row(room.pool, execution_id))["status"] == "running"
    room.held.clear()
    await reaper.disown(room)
    assert (await row(room.pool, execution_id))["status"] == "pending"
    assert await queued(room) == [f"{execution_id}.1"]


async def test_housekeeping_forgets_what_is_old_and_makes_room_for_what_comes(room: Room) -> None:
    await room.pool.execute(
        "INSERT INTO execution_keys VALUES ('o', 'k', 'd', gen_random_uuid(), clock_timestamp())"
    )
    await room.pool.execute(
        "INSERT INTO workers (id, host, pid, queues, handlers, slots, heartbeat_at) "
        "VALUES ('old', 'h', 1, '{}', '{}', 1, clock_timestamp() - interval '2 days')"
    )
    await reaper.sweep(room)
    assert await room.pool.fetchval("SELECT count(*) FROM execution_keys") == 1
    await reaper.sweep(room, housekeeping=True)
    assert await room.pool.fetchval("SELECT count(*) FROM execution_keys") == 0
    assert [r["id"] for r in await room.pool.fetch("SELECT id FROM workers")] == [room.id]


async def test_upkeep_goes_on_when_a_round_fails_and_when_redis_is_away(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "UNHEARD_S", 0.0)
    worker = {"queues": ["direct"], "sweep_ms": 100, "lease_ms": 500}
    async with (
        proxied(redis_url) as proxy,
        room_in(database_url, proxy.url, tmp_path, worker=worker) as room,
    ):
        await beats_for_ever(room)
        await proxy.cut()
        await room.pool.execute("ALTER TABLE workers RENAME TO hidden")
        gone = await lost(room, idempotent=False)
        upkeep = asyncio.create_task(reaper.keep(room))
        with pytest.raises(AssertionError):
            await until(lambda: ended(room, gone), "it ends", deadline_s=0.3)
        await room.pool.execute("ALTER TABLE hidden RENAME TO workers")
        await until(lambda: ended(room, gone), "a later round ends it")
        waiting = await submit(room.executions)
        await proxy.mend()

        async def rung() -> bool:
            return await queued(room) == [f"{waiting}.0"]

        await until(rung, "the row is rung for once Redis is back")
        await end(upkeep)


async def ended(room: Room, execution_id: UUID) -> bool:
    return bool((await row(room.pool, execution_id))["status"] == "error")


async def test_while_postgres_stays_away_it_is_said_once(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    worker = {"queues": ["direct"], "sweep_ms": 50}
    async with room_in(database_url, redis_url, tmp_path, worker=worker) as room:
        await room.pool.close()  # every round meets what a lost server means
        with capture_logs() as logs:
            upkeep = asyncio.create_task(reaper.keep(room))
            await asyncio.wait({upkeep}, timeout=1.5)  # some thirty rounds
            assert not upkeep.done()
            await end(upkeep)
    said = [line for line in logs if line["event"] == "upkeep.failed"]
    assert len(said) == 1
    assert "SKILLS_DATABASE_URL" in said[0]["hint"]
