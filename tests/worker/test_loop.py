import asyncio
from datetime import UTC, datetime, timedelta

from arq.constants import in_progress_key_prefix
from redis.asyncio import Redis

from shared.queue import Queue
from shared.redis import bell_key
from tests.signals import until
from tests.worker.pulling import Desk, drained, entry, pulling, until_gone
from worker.lease import Leases


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
        assert await worker._round(0.1) != 0
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


async def test_a_lease_is_renewed_while_the_work_goes_on(redis: Redis, desk: Desk) -> None:
    desk.open.clear()
    put = entry()
    key = in_progress_key_prefix + put.id
    async with pulling(redis, desk, lease_s=1.0):
        await Queue(redis).put([put])
        await desk.has(put.execution_id)
        start, renewals, before = asyncio.get_running_loop().time(), 0, 10_000
        while renewals < 6:
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
        taken = await worker._leases.cycle(1, [], "")  # a round that was under way
        assert [taken_one.id.decode() for taken_one in taken.entries] == [second.id]
        await worker._start(taken.entries)
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


async def test_running_entries_never_stand_before_waiting_ones(redis: Redis, desk: Desk) -> None:
    desk.open.clear()
    entries = [entry() for _ in range(2_000)]
    await Queue(redis).put(entries)
    async with pulling(redis, desk, slots=2_000), pulling(redis, desk, slots=1):
        await desk.has(*(e.execution_id for e in entries))
        last = entry()
        await Queue(redis).put([last])
        await desk.has(last.execution_id)
        desk.open.set()
        await drained(redis)


async def test_one_owner_s_flood_lets_another_s_next_call_through(redis: Redis, desk: Desk) -> None:
    flood = [entry(owner="flood") for _ in range(500)]
    await Queue(redis).put(flood)
    await Queue(redis).put([single := entry(owner="single")])
    async with pulling(redis, desk, slots=1):
        await drained(redis)
    assert desk.arrived.index(single.execution_id) <= 1
    assert len(desk.arrived) == 501


async def test_owners_share_by_their_weights(redis: Redis, desk: Desk) -> None:
    heavy = [entry(owner="heavy", weight=3.0) for _ in range(60)]
    light = [entry(owner="light") for _ in range(60)]
    await Queue(redis).put(heavy)
    await Queue(redis).put(light)
    async with pulling(redis, desk, slots=1):
        await drained(redis)
    ours = {e.execution_id for e in heavy}
    assert 28 <= sum(i in ours for i in desk.arrived[:40]) <= 32, "three turns to one"


async def test_a_retry_does_not_wait_behind_its_owner_s_backlog(redis: Redis, desk: Desk) -> None:
    await Queue(redis).put([entry(owner="a") for _ in range(50)])
    again = entry(owner="a", attempt=1)
    await Queue(redis).put([again])
    async with pulling(redis, desk, slots=1):
        await drained(redis)
    assert desk.arrived.index(again.execution_id) <= 1


async def test_what_a_lost_answer_took_goes_back_at_once(redis: Redis, desk: Desk) -> None:
    put = entry()
    await Queue(redis).put([put])
    leases = Leases(redis, "direct", "worker-a", 60.0)
    assert len((await leases.cycle(1, [], "")).entries) == 1, "taken, and the answer is lost"
    other = entry()
    await Queue(redis).put([other])
    taken = await leases.cycle(1, [], "")
    assert await leases.reclaim([taken_one.id for taken_one in taken.entries]) == 1
    async with pulling(redis, desk):
        await desk.has(put.execution_id)
    assert desk.arrived == [put.execution_id], "what is known of stays held"
