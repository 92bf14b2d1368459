import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from arq.constants import in_progress_key_prefix
from redis.asyncio import Redis

from shared.queue import Queue
from shared.redis import bell_key
from tests.signals import until
from tests.worker.pulling import Desk, drained, entry, pulling, until_gone
from worker import loop as loop_module


async def test_an_idle_worker_is_woken_by_the_bell(redis: Redis, desk: Desk) -> None:
    async with pulling(redis, desk):
        for _ in range(5):
            put = entry()
            await Queue(redis).put([put])
            await desk.has(put.execution_id)
        await drained(redis)


async def test_what_waits_from_before_is_taken_without_a_bell(redis: Redis, desk: Desk) -> None:
    entries = [entry() for _ in range(10)]
    await Queue(redis).put(entries)
    await redis.delete(bell_key("direct"))
    async with pulling(redis, desk, slots=2):
        await desk.has(*(e.execution_id for e in entries))
        await drained(redis)
    assert len(desk.arrived) == 10


async def test_no_more_run_at_once_than_there_are_slots(redis: Redis, desk: Desk) -> None:
    desk.open.clear()
    entries = [entry() for _ in range(6)]
    async with pulling(redis, desk, slots=2) as worker:
        await Queue(redis).put(entries)
        await desk.has(entries[0].execution_id, entries[1].execution_id)
        await worker._poll_iteration()
        assert len(desk.arrived) == 2
        desk.open.set()
        await desk.has(*(e.execution_id for e in entries))


async def test_one_slot_takes_them_by_priority(redis: Redis, desk: Desk) -> None:
    low, normal, high = (entry(priority=name) for name in ("low", "normal", "high"))
    await Queue(redis).put([low, normal, high])
    async with pulling(redis, desk, slots=1):
        await drained(redis)
    assert desk.arrived == [high.execution_id, normal.execution_id, low.execution_id]


async def test_an_entry_for_later_is_taken_when_it_is_due(redis: Redis, desk: Desk) -> None:
    due = datetime.now(UTC) + timedelta(seconds=0.3)
    later = entry(due_at=due)
    await Queue(redis).put([later])
    async with pulling(redis, desk, poll_s=0.02):
        await desk.has(later.execution_id)
    assert datetime.now(UTC) >= due


async def test_two_workers_do_not_share_an_entry(redis: Redis, desk: Desk) -> None:
    entries = [entry() for _ in range(60)]
    async with pulling(redis, desk), pulling(redis, desk):
        await Queue(redis).put(entries)
        await desk.has(*(e.execution_id for e in entries))
        await drained(redis)
    assert len(desk.arrived) == 60


async def test_a_lease_is_renewed_while_the_work_goes_on(
    redis: Redis, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "LEASE_S", 3.0)
    monkeypatch.setattr(loop_module, "RENEW_S", 0.1)
    desk.open.clear()
    put = entry()
    key = in_progress_key_prefix + put.id
    async with pulling(redis, desk, poll_s=0.05) as worker:
        assert worker.in_progress_timeout_s == 3.0
        await Queue(redis).put([put])
        await desk.has(put.execution_id)
        start, renewals, before = asyncio.get_running_loop().time(), 0, 10_000
        while renewals < 8:
            left = await redis.pttl(key)
            assert left > 0, "the lease ran out under a live worker"
            renewals += left > before
            before = left
            assert asyncio.get_running_loop().time() - start < 20
            await asyncio.sleep(0.01)
        assert desk.arrived == [put.execution_id]


async def test_an_entry_whose_worker_died_is_taken_when_its_lease_ran_out(
    redis: Redis, desk: Desk
) -> None:
    put = entry()
    await Queue(redis).put([put])
    began = asyncio.get_running_loop().time()
    await redis.set(in_progress_key_prefix + put.id, "1", px=300)
    async with pulling(redis, desk, poll_s=0.02):
        await desk.has(put.execution_id)
    assert asyncio.get_running_loop().time() - began >= 0.3


async def test_stopping_takes_nothing_new_and_lets_the_rest_queued(
    redis: Redis, desk: Desk
) -> None:
    desk.open.clear()
    first, second = entry(), entry()
    async with pulling(redis, desk, poll_s=0.02) as worker:
        await Queue(redis).put([first])
        await desk.has(first.execution_id)
        worker.stop_picking()
        await Queue(redis).put([second])
        await worker.start_jobs([second.id.encode()])  # a poll that was under way

        async def turned_away() -> bool:
            return worker.jobs_retried == 1

        await until(turned_away, "what was picked too late goes back")
        desk.open.set()
        await until_gone(redis, in_progress_key_prefix)
        assert desk.arrived == [first.execution_id]
    other = Desk()
    async with pulling(redis, other):
        await other.has(second.execution_id)


async def test_an_entry_for_another_worker_stays_and_comes_again(redis: Redis, desk: Desk) -> None:
    desk.answer = False
    put = entry()
    async with pulling(redis, desk, poll_s=0.02):
        await Queue(redis).put([put])

        async def twice() -> bool:
            return desk.arrived == [put.execution_id] * 2

        await until(twice, "it comes again")
        desk.answer = True
        await drained(redis)


async def test_an_execution_that_breaks_takes_nobody_along(redis: Redis, desk: Desk) -> None:
    desk.error = RuntimeError("broken")
    bad, good = entry(), entry()
    async with pulling(redis, desk):
        await Queue(redis).put([bad])
        await desk.has(bad.execution_id)
        await drained(redis)
        desk.error = None
        await Queue(redis).put([good])
        await desk.has(good.execution_id)
