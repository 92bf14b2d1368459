import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arq.connections import ArqRedis
from arq.constants import job_key_prefix
from redis.asyncio import Redis
from structlog.testing import capture_logs
from uuid_utils.compat import uuid7

from shared.queue import FUNCTION, Queue, serialize
from shared.redis import queue_key
from tests.factories import redis_to
from tests.faults.proxy import proxied
from tests.signals import until
from tests.worker.pulling import Desk, drained, entry, pulling

# --- what others put there ------------------------------------------------------------------------


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


async def test_a_pickled_job_is_refused_unread_and_the_worker_lives_on(
    redis: Redis, desk: Desk, tmp_path: Path
) -> None:
    trace = tmp_path / "unpickled"
    pickle.loads(pickle.dumps(Bomb(trace)))  # noqa: S301  # shows that the bomb works
    trace.unlink()
    stock = ArqRedis(redis.connection_pool)  # its default serializer is pickle
    job = await stock.enqueue_job(FUNCTION, Bomb(trace), _queue_name=queue_key("direct"))
    assert job is not None
    with capture_logs() as logged:
        async with pulling(redis, desk, poll_s=0.02):
            good = entry()
            await Queue(redis).put([good])
            await desk.has(good.execution_id)
            await drained(redis)
    assert not trace.exists()
    (refusal,) = [entry for entry in logged if entry["event"] == "queue.entry.refused"]
    assert job.job_id in refusal["entry"]
    assert "refused unread" in refusal["error"]
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
