"""Whatever somebody writes into Redis, a worker goes on serving, at once and with every slot."""

import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from arq.constants import abort_jobs_ss, job_key_prefix, retry_key_prefix
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared.queue import FUNCTION, Queue
from shared.redis import bell_key, queue_key
from tests.factories import redis_to
from tests.faults.proxy import Proxy, proxied
from tests.signals import until
from tests.worker.pulling import Desk, entry, pulling
from worker.loop import QueueWorker

SLOTS = 4
MANY = 3 * SLOTS


def job(**changes: Any) -> bytes:
    fields: Mapping[str, Any] = {"t": None, "f": FUNCTION, "a": [str(uuid7())], "k": {}, "et": 1}
    return msgspec.msgpack.encode({**fields, **changes})


BODIES = {
    "pickle": pickle.dumps({"t": None, "f": FUNCTION, "a": ("x",), "k": {}, "et": 1}),
    "garbage": b"\xff\x00",
    "another function": job(f="os.system"),
    "no uuid": job(a=["x"]),
    "no text": job(a=[["x"]]),
    "no argument": job(a=[]),
    "keywords": job(k={"_": 1}),
    "a time beyond all years": job(et=2**62),
    "a time before all years": job(et=-(2**62)),
    "a try beyond all": job(t=2**62),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_bodies_of_any_kind_are_dropped(redis: Redis, desk: Desk, body: bytes) -> None:
    for number in range(MANY):
        await redis.set(f"{job_key_prefix}bad-{number}", body)
        await redis.zadd(queue_key("direct"), {f"bad-{number}": 1})
    await goes_on(redis, desk)


async def test_keys_that_hold_something_else_are_dropped(redis: Redis, desk: Desk) -> None:
    for number in range(MANY):
        await redis.rpush(f"{job_key_prefix}list-{number}", "x")  # type: ignore[misc]
        await redis.set(f"{job_key_prefix}full-{number}", job())
        await redis.set(f"{retry_key_prefix}full-{number}", 2**63 - 1)
        await redis.zadd(queue_key("direct"), {f"list-{number}": 1, f"full-{number}": 1})
    await redis.set(abort_jobs_ss, "x")
    await goes_on(redis, desk)
    assert not [key async for key in redis.scan_iter("arq:*") if await redis.ttl(key) == -1]


async def test_an_infinite_score_does_not_stand_in_the_way(redis: Redis, desk: Desk) -> None:
    for number in range(MANY):
        await redis.set(f"{job_key_prefix}first-{number}", job(), px=60_000)
        await redis.zadd(queue_key("direct"), {f"first-{number}": float("-inf")})
    await goes_on(redis, desk)


async def test_names_of_any_kind_do_no_harm(redis: Redis, desk: Desk) -> None:
    names: list[bytes] = [b"", b"\xff\xfe", "é".encode(), b"a b\r\nc", b"x" * 100_000]
    await redis.zadd(queue_key("direct"), dict.fromkeys(names, 1))
    await goes_on(redis, desk)


@pytest.mark.parametrize("key", [bell_key("direct"), queue_key("direct")], ids=["bell", "queue"])
async def test_what_stands_under_our_names_gives_way(redis: Redis, desk: Desk, key: str) -> None:
    await redis.set(key, "x")
    first = entry()
    assert await Queue(redis).missing([first]) == [first]
    assert await Queue(redis).put([first]) == 1
    await goes_on(redis, desk)
    assert first.execution_id in desk.arrived


async def test_a_redis_that_stumbles_costs_no_slot(
    redis: Redis, redis_url: str, desk: Desk
) -> None:
    async with (
        proxied(redis_url) as proxy,
        redis_to(proxy.url) as shaky,
        pulling(shaky, desk, slots=SLOTS, poll_s=0.01) as worker,
    ):
        for _ in range(3 * SLOTS):
            await stumble(redis, proxy, desk)
        await empties(redis, worker)


async def stumble(redis: Redis, proxy: Proxy, desk: Desk) -> None:
    """Cut every connection while entries are being started."""
    before = len(desk.arrived)
    await Queue(redis).put([entry() for _ in range(20)])

    async def under_way() -> bool:
        return len(desk.arrived) > before

    await until(under_way, "entries are being started")
    await proxy.cut()
    await proxy.mend()


async def goes_on(redis: Redis, desk: Desk) -> None:
    """See entries arrive by the bell, one after the other, until nothing odd is left."""
    async with pulling(redis, desk, slots=SLOTS) as worker:
        for _ in range(MANY):
            put = entry(priority="low")
            await Queue(redis).put([put])
            await desk.has(put.execution_id)
        await empties(redis, worker)


async def empties(redis: Redis, worker: QueueWorker) -> None:
    async def empty() -> bool:
        return await redis.zcard(queue_key("direct")) == 0 and worker.job_counter == 0

    await until(empty, "the queue is empty and every slot free", deadline_s=40)
