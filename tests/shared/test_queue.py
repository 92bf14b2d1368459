import pickle
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from arq.constants import job_key_prefix
from arq.jobs import DeserializationError, deserialize_job
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared.queue import ENTRY_TTL_MS, FUNCTION, IN_PROGRESS, Entry, Queue, deserialize, serialize
from shared.redis import bell_key, queue_key


def entry(**changes: Any) -> Entry:
    return Entry(
        **{
            "execution_id": uuid7(),
            "attempt": 0,
            "queue": "direct",
            "priority": "normal",
            **changes,
        }
    )


async def now_ms(redis: Redis) -> int:
    seconds, micros = await redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def order(redis: Redis, queue: str = "direct") -> list[str]:
    return [member.decode() for member in await redis.zrange(queue_key(queue), 0, -1)]


async def test_an_entry_names_the_execution_and_nothing_else(redis: Redis) -> None:
    put = entry()
    assert await Queue(redis).put([put]) == 1
    body = await redis.get(f"arq:job:{put.execution_id}.0")
    job = deserialize_job(body, deserializer=deserialize)
    assert (job.function, list(job.args), job.kwargs) == (FUNCTION, [str(put.execution_id)], {})
    assert await redis.lrange(bell_key("direct"), 0, -1) == [b"1"]  # type: ignore[misc]


async def test_many_entries_go_to_their_queues(redis: Redis) -> None:
    entries = [entry(queue=name) for name in ("direct", "sandbox", "direct")]
    assert await Queue(redis).put(entries) == 3
    assert set(await order(redis)) == {entries[0].id, entries[2].id}
    assert await order(redis, "sandbox") == [entries[1].id]
    assert await Queue(redis).put([]) == 0


async def test_an_entry_that_is_there_is_left_as_it_is(redis: Redis) -> None:
    put, queue = entry(), Queue(redis)
    await queue.put([put])
    before = await redis.zscore(queue_key("direct"), put.id)
    assert await queue.put([put, entry()]) == 1
    assert await redis.zscore(queue_key("direct"), put.id) == before


async def test_a_retry_is_an_entry_of_its_own(redis: Redis) -> None:
    execution_id = uuid7()
    entries = [entry(execution_id=execution_id, attempt=n) for n in range(2)]
    assert await Queue(redis).put(entries) == 2


async def test_priorities_are_head_starts(redis: Redis) -> None:
    low, normal, high = (entry(priority=name) for name in ("low", "normal", "high"))
    for put in (low, normal, high):
        await Queue(redis).put([put])
    assert await order(redis) == [high.id, normal.id, low.id]


async def test_an_entry_for_later_comes_when_it_is_due_and_rings_nobody(redis: Redis) -> None:
    due = datetime.now(UTC) + timedelta(hours=2)
    later = entry(due_at=due, priority="high")
    await Queue(redis).put([later])
    score = await redis.zscore(queue_key("direct"), later.id)
    assert 0 <= score - due.timestamp() * 1000 <= 2, "never before the row's own time"
    assert not await redis.exists(bell_key("direct"))
    assert await redis.pttl(f"arq:job:{later.id}") > ENTRY_TTL_MS + 7_000_000


@pytest.mark.parametrize("wrong_s", [-7200, 7200])
async def test_redis_says_what_is_due_whatever_the_writer_s_clock_says(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, wrong_s: int
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    true = time.time
    monkeypatch.setattr("time.time", lambda: true() + wrong_s)
    at, after = entry(due_at=due), entry(attempt=1, due_in_s=60)
    before = await now_ms(redis)
    await Queue(redis).put([at, after])
    found = await redis.zmscore(queue_key("direct"), [at.id, after.id])
    assert 0 <= found[0] - due.timestamp() * 1000 <= 2
    assert before + 60_000 <= found[1] <= await now_ms(redis) + 60_000


async def test_no_turn_is_a_score_of_zero_which_arq_s_own_worker_takes_for_no_entry(
    redis: Redis,
) -> None:
    first = entry(priority="high")
    await Queue(redis).put([first])
    assert await redis.zscore(queue_key("direct"), first.id) > 0


async def test_what_is_missing_from_its_queue_is_told_also_when_its_body_is_left(
    redis: Redis,
) -> None:
    queue = Queue(redis)
    entries = [entry() for _ in range(3)]
    await queue.put(entries)
    assert await queue.missing(entries) == []
    await redis.zrem(queue_key("direct"), entries[1].id)
    assert await queue.missing(entries) == [entries[1]]
    assert await queue.put(entries) == 1
    assert await queue.missing(entries) == []
    assert await queue.missing([]) == []


async def test_what_is_withdrawn_is_gone_with_its_body_unless_a_worker_holds_it(
    redis: Redis,
) -> None:
    queue, later = Queue(redis), datetime.now(UTC) + timedelta(hours=1)
    entries = [entry(), entry(due_at=later), entry(priority="low"), entry(queue="sandbox")]
    held, stays = entry(), entry()
    await queue.put([*entries, held, stays])
    await redis.set(f"{IN_PROGRESS}{held.id}", "worker")
    await queue.withdraw([*entries, held, entry()])
    assert await order(redis) == [held.id, stays.id]
    assert await order(redis, "sandbox") == []
    bodies = {key.decode() for key in await redis.keys(f"{job_key_prefix}*")}
    assert bodies == {f"{job_key_prefix}{one.id}" for one in (held, stays)}
    assert await queue.put(entries) == len(entries), "they may come again"


async def test_every_key_but_the_queue_itself_has_a_time_to_live(redis: Redis) -> None:
    await Queue(redis).put([entry(), entry(due_at=datetime.now(UTC) + timedelta(days=1))])
    for key in await redis.keys("*"):
        if key.decode() != queue_key("direct"):
            assert await redis.ttl(key) > 0, key


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_unread_in_every_protocol(protocol: int) -> None:
    job: dict[str, Any] = {"t": None, "f": FUNCTION, "a": ("x",), "k": {}, "et": 1}
    with pytest.raises(DeserializationError, match="refused unread"):
        deserialize(pickle.dumps(job, protocol))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_job_or_refused(data: bytes) -> None:
    with suppress(DeserializationError):
        assert set(deserialize(data)) == {"t", "f", "a", "k", "et"}


@pytest.mark.parametrize(
    "change",
    [{"f": ["execute"]}, {"t": "1"}, {"et": None}, {"a": "abc"}, {"k": []}, {"f": None}],
)
def test_a_job_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    job: dict[str, Any] = {"t": None, "f": FUNCTION, "a": ["x"], "k": {}, "et": 1}
    assert deserialize(msgspec.msgpack.encode(job)) == job
    with pytest.raises(DeserializationError):
        deserialize(msgspec.msgpack.encode({**job, **change}))


def test_an_exception_becomes_its_text() -> None:
    assert msgspec.msgpack.decode(serialize({"r": ValueError("no")})) == {"r": "no"}
