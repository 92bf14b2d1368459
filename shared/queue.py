"""The queue: arq's keys and wire format, without pickle, one round trip for many entries.

An entry's id is ``<execution id>.<attempts so far>``: a retry gets an id of its own, so what a dead
worker left behind never stands in its way. The entry's body names the execution and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

import msgspec
from arq.constants import job_key_prefix
from arq.jobs import DeserializationError, serialize_job
from arq.utils import timestamp_ms, to_unix_ms
from redis.asyncio import Redis

from shared.redis import BELL_TTL_MS, bell_key, queue_key

FUNCTION = "execute"
"""The one arq function there is; its one argument is the execution's id."""

ENTRY_TTL_MS = 24 * 3_600_000
"""How long an entry's body lives past its due time; the sweep rings again from the row."""

HEAD_START_MS = {"high": 3_600_000, "normal": 1_800_000, "low": 0}
"""A lower score goes first: a priority is a head start on the clock, and nothing starves."""

# Whatever else somebody put under these names goes: it would stand in the way for ever.
# KEYS: queue, bell, then one body key an entry. ARGV: body TTL base, bell TTL, then per entry
# id, score, body, milliseconds until due. An entry that is in the set already is left as it is.
ENQUEUE = """
for i, kind in ipairs({'zset', 'list'}) do
  local there = redis.call('TYPE', KEYS[i]).ok
  if there ~= 'none' and there ~= kind then redis.call('DEL', KEYS[i]) end
end
local added = 0
for i = 3, #KEYS do
  local a = 3 + (i - 3) * 4
  if redis.call('ZADD', KEYS[1], 'NX', ARGV[a + 1], ARGV[a]) == 1 then
    redis.call('SET', KEYS[i], ARGV[a + 2], 'PX', ARGV[1] + ARGV[a + 3])
    if tonumber(ARGV[a + 3]) == 0 then
      redis.call('LPUSH', KEYS[2], '1')
    end
    added = added + 1
  end
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('LTRIM', KEYS[2], 0, 63)
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return added
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the queue is told of a row: whose turn, when, and which attempt it waits for."""

    execution_id: UUID
    attempt: int
    queue: str
    priority: str
    due_at: datetime | None = None

    @property
    def id(self) -> str:
        """Return the id under which arq knows the entry."""
        return f"{self.execution_id}.{self.attempt}"


def serialize(value: dict[str, Any]) -> bytes:
    """Encode an arq job as msgpack; arq hands exceptions to it too, which become their text."""
    return msgspec.msgpack.encode(value, enc_hook=str)


class Job(TypedDict):
    """What arq's workers read of an entry's body: try, function, arguments, enqueue time (ms)."""

    t: int | None
    f: str
    a: list[Any]
    k: dict[str, Any]
    et: int


def deserialize(data: bytes) -> dict[str, Any]:
    """Decode an arq job; raise DeserializationError, unread, for anything but msgpack of a job."""
    try:
        return dict(msgspec.msgpack.decode(data, type=Job))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeserializationError("not a msgpack job; refused unread") from error


class Queue:
    """Puts entries into Redis and tells which of them are there."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._script = redis.register_script(ENQUEUE)

    async def put(self, entries: Sequence[Entry]) -> int:
        """Enqueue and ring; return how many were new. Raises redis errors when Redis is away."""
        added = 0
        for name in sorted({entry.queue for entry in entries}):
            added += await self._put(name, [entry for entry in entries if entry.queue == name])
        return added

    async def missing(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries that are not in their queue."""
        if not entries:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for entry in entries:
            pipeline.zscore(queue_key(entry.queue), entry.id)
        there = await pipeline.execute(raise_on_error=False)
        for answer in there:
            if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
                raise answer
        # What is no sorted set holds no entry; the next put makes it one.
        return [e for e, score in zip(entries, there, strict=True) if not isinstance(score, float)]

    async def _put(self, name: str, entries: Sequence[Entry]) -> int:
        now = timestamp_ms()
        keys = [queue_key(name), bell_key(name)]
        arguments: list[Any] = [ENTRY_TTL_MS, BELL_TTL_MS]
        for entry in entries:
            # A millisecond late rather than early: the row has its time in microseconds, and an
            # entry that comes before it is dropped.
            due = now if entry.due_at is None else max(now, to_unix_ms(entry.due_at) + 1)
            # Scores of entries that are due already may lie in the past; later ones never earlier.
            score = due - HEAD_START_MS[entry.priority] if due == now else due
            body = serialize_job(
                FUNCTION, (str(entry.execution_id),), {}, None, now, serializer=serialize
            )
            keys.append(job_key_prefix + entry.id)
            arguments += [entry.id, score, body, due - now]
        return int(await self._script(keys=keys, args=arguments))
