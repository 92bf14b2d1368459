import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared.queue import FUNCTION, Entry, Queue, serialize
from shared.redis import bell_key, queue_key
from shared.tasks import end
from tests.factories import redis_to
from tests.faults.proxy import proxied
from tests.services import keys_without_ttl
from tests.signals import until
from worker import loop as loop_module
from worker.loop import QueueWorker

SLOW_POLL_S = 30.0
"""So slow that only the bell explains what happens soon."""


class Desk:
    """Where executions arrive: notes them, and holds them until told to let go."""

    def __init__(self) -> None:
        self.arrived: list[UUID] = []
        self.open = asyncio.Event()
        self.open.set()
        self.answer = True
        self.error: Exception | None = None

    async def execute(self, execution_id: UUID) -> bool:
        self.arrived.append(execution_id)
        await self.open.wait()
        if self.error:
            raise self.error
        return self.answer

    async def has(self, *ids: UUID) -> None:
        async def all_there() -> bool:
            return set(ids) <= set(self.arrived)

        await until(all_there, f"{len(ids)} arrive")


@asynccontextmanager
async def pulling(
    redis: Redis, desk: Desk, *, slots: int = 4, poll_s: float = SLOW_POLL_S
) -> AsyncIterator[QueueWorker]:
    worker = QueueWorker(redis, "direct", slots, poll_s, desk.execute)
    task = asyncio.create_task(worker.main())
    try:
        yield worker
    finally:
        desk.open.set()
        await end(task)
        await asyncio.gather(*worker.tasks.values(), return_exceptions=True)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with redis_to(redis_url) as client:
        yield client


@pytest.fixture
def desk() -> Desk:
    return Desk()


def entry(**changes: Any) -> Entry:
    fields: dict[str, Any] = {"execution_id": uuid7(), "attempt": 0}
    return Entry(**{**fields, "queue": "direct", "priority": "normal", **changes})


async def drained(redis: Redis) -> None:
    async def empty() -> bool:
        return int(await redis.zcard(queue_key("direct"))) == 0

    await until(empty, "the queue is empty")
    await until_gone(redis, job_key_prefix, in_progress_key_prefix)
    assert await keys_without_ttl(redis) == []


async def until_gone(redis: Redis, *prefixes: str) -> None:
    async def gone() -> bool:
        return not [key for prefix in prefixes for key in await redis.keys(f"{prefix}*")]

    await until(gone, "nothing of a job is left")


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


# --- what others put there ------------------------------------------------------------------------


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


async def test_a_pickled_job_is_refused_unread_and_the_worker_lives_on(
    redis: Redis, desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = tmp_path / "unpickled"
    pickle.loads(pickle.dumps(Bomb(trace)))  # noqa: S301  # shows that the bomb works
    trace.unlink()
    stock = ArqRedis(redis.connection_pool)  # its default serializer is pickle
    job = await stock.enqueue_job(FUNCTION, Bomb(trace), _queue_name=queue_key("direct"))
    assert job is not None
    async with pulling(redis, desk, poll_s=0.02):
        good = entry()
        await Queue(redis).put([good])
        await desk.has(good.execution_id)
        await drained(redis)
    assert not trace.exists()
    assert f"deserializing job {job.job_id} failed" in caplog.text
    assert "refused unread" in caplog.text
    assert desk.arrived == [good.execution_id]


async def test_a_job_of_arq_s_own_pool_with_our_serializer_runs(redis: Redis, desk: Desk) -> None:
    wanted = uuid7()
    pool = ArqRedis(redis.connection_pool, job_serializer=serialize)
    await pool.enqueue_job(FUNCTION, str(wanted), _queue_name=queue_key("direct"))
    async with pulling(redis, desk):
        await desk.has(wanted)
        await drained(redis)


JUNK: dict[str, tuple[bytes, bytes]] = {
    "no body": (b"lost", b""),
    "function is a list": (b"a", msgspec.msgpack.encode({"f": []})),
    "nil": (b"b", msgspec.msgpack.encode(None)),
    "unknown function": (
        b"c",
        msgspec.msgpack.encode({"t": None, "f": "rm", "a": [], "k": {}, "et": 1}),
    ),
    "no uuid": (
        b"d",
        msgspec.msgpack.encode({"t": 1, "f": FUNCTION, "a": ["x"], "k": {}, "et": 1}),
    ),
    "too many arguments": (
        b"e",
        msgspec.msgpack.encode({"t": 1, "f": FUNCTION, "a": ["x"] * 3, "k": {"y": 1}, "et": 1}),
    ),
    "id is not text": (b"\xff\xfe", b"x"),
}


@pytest.mark.parametrize("name", JUNK)
async def test_junk_is_thrown_out_and_the_worker_lives_on(
    redis: Redis, desk: Desk, name: str
) -> None:
    member, body = JUNK[name]
    await redis.zadd(queue_key("direct"), {member: 1.0})
    if body:
        await redis.set(job_key_prefix.encode() + member, body, px=60_000)
    good = entry()
    async with pulling(redis, desk, poll_s=0.02):
        await Queue(redis).put([good])
        await desk.has(good.execution_id)

        async def thrown_out() -> bool:
            return int(await redis.zcard(queue_key("direct"))) == 0

        await until(thrown_out, "the queue is empty")
    assert desk.arrived == [good.execution_id]


async def test_a_body_of_another_type_holds_nobody_else_up(redis: Redis, desk: Desk) -> None:
    await redis.zadd(queue_key("direct"), {"odd": 1.0})
    await redis.hset(f"{job_key_prefix}odd", "x", "y")  # type: ignore[misc]  # it is awaitable
    async with pulling(redis, desk, poll_s=0.02):
        for _ in range(3):
            good = entry()
            await Queue(redis).put([good])
            await desk.has(good.execution_id)


async def test_a_redis_that_goes_and_comes_back_finds_the_worker_there(
    redis: Redis, redis_url: str, desk: Desk
) -> None:
    async with (
        proxied(redis_url) as proxy,
        redis_to(proxy.url) as wire,
        pulling(wire, desk, poll_s=0.05),
    ):
        for _ in range(2):
            await proxy.cut()
            put = entry()
            await Queue(redis).put([put])
            await proxy.mend()
            await desk.has(put.execution_id)
        await drained(redis)


async def test_work_under_way_when_redis_goes_is_not_done_twice(
    redis: Redis, redis_url: str, desk: Desk
) -> None:
    desk.open.clear()
    put, next_one = entry(), entry()
    async with (
        proxied(redis_url) as proxy,
        redis_to(proxy.url) as wire,
        pulling(wire, desk, poll_s=0.05),
    ):
        await Queue(redis).put([put])
        await desk.has(put.execution_id)
        await proxy.cut()
        desk.open.set()
        await proxy.mend()
        await Queue(redis).put([next_one])
        await desk.has(next_one.execution_id)
    assert desk.arrived.count(put.execution_id) == 1
