from redis.asyncio import Redis

from shared.queue import Queue
from tests.worker.pulling import Desk, drained, entry, pulling
from worker.pulse import Pulse


async def test_a_worker_tells_what_it_runs_and_how_fast(redis: Redis, desk: Desk) -> None:
    async with pulling(redis, desk, slots=2) as worker:
        pulse = Pulse({"direct": worker})
        assert pulse.rates() == {"direct": 0.0}
        desk.open.clear()
        entries = [entry() for _ in range(2)]
        await Queue(redis).put(entries)
        await desk.has(*(e.execution_id for e in entries))
        assert pulse.running == 2
        assert pulse.consuming, "it has no slot to look for"
        desk.open.set()
        await drained(redis)
        assert pulse.rates()["direct"] > 0
        assert pulse.running == 0


async def test_a_loop_that_does_not_come_round_is_not_consuming(redis: Redis, desk: Desk) -> None:
    async with pulling(redis, desk) as worker:
        worker._consumed_at -= 3600
        assert not Pulse({"direct": worker}).consuming
        put = entry()
        await Queue(redis).put([put])
        await desk.has(put.execution_id)
        assert Pulse({"direct": worker}).consuming
