"""The queue: arq's keys and wire format, without pickle, one round trip for many entries.

An entry's id is ``<execution id>.<attempts so far>``, with a sign behind it unless its priority is
normal: a retry gets an id of its own, so what a dead worker left behind never stands in its way.
The entry's body names the execution, whose it is and which skill's, and nothing else.

Who goes first is start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM
1996): an entry's score is the turn at which its owner's next one may start, counted in a time of
the queue's own that advances with what is taken. However many one owner has waiting, another's
next entry goes before all but the first of them. Turns are small numbers; a score that is a time in
milliseconds is an entry for later, a leased one, or one that arq's own pool put there.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
from arq.constants import in_progress_key_prefix, job_key_prefix
from arq.jobs import DeserializationError
from arq.utils import to_unix_ms
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.redis import (
    BELL_TTL_MS,
    SHARE_TTL_MS,
    bell_key,
    parked_key,
    queue_key,
    share_key,
)

FUNCTION = "execute"
"""The one arq function there is; its one argument is the execution's id."""

ENTRY_TTL_MS = 24 * 3_600_000
"""How long an entry's body lives past its due time; the sweep rings again from the row."""

TURNS = {"high": 0, "normal": 1000, "low": 2000}
"""Turns that an entry of this priority lets others have first; nothing starves."""

SIGNS = {"high": "+", "normal": "", "low": "-"}

IN_PROGRESS = in_progress_key_prefix
"""What stands before an entry's id in the key that names the worker which holds it."""

LAST_TURN = 1e11
"""Scores up to here are turns, above are milliseconds since 1970 (1e11 was in 1973).

The turns start anew whenever the queue is empty; without that 20,000 a second reach it in two
months, and from then on entries go by age.
"""

BELLS = 4
"""Rings that may wait: one idle worker each; who takes the last one and leaves work rings again."""

# Whatever else somebody put under these names goes: it would stand in the way for ever.
GUARD = """
for i, kind in ipairs({'zset', 'list', 'hash', 'hash'}) do
  if not KEYS[i] then break end
  local there = redis.call('TYPE', KEYS[i]).ok
  if there ~= 'none' and there ~= kind then redis.call('DEL', KEYS[i]) end
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function number(value) return string.format('%.17g', value) end
"""

# The turn of an owner's next entry, which is then charged for it. A retry had its turn already.
# Turns begin with 1: arq's own worker takes a score of 0 for an entry that is gone.
TURN = """
local virtual = math.max(1, tonumber(redis.call('HGET', KEYS[3], '') or 1) or 1)
local function turn(owner, step, waits, again)
  local start = virtual
  if not again then
    local field = waits .. ' ' .. owner
    start = math.max(start, tonumber(redis.call('HGET', KEYS[3], field) or 0) or 0)
    redis.call('HSET', KEYS[3], field, number(start + step))
  end
  return math.min(start + waits, LAST_TURN)
end
""".replace("LAST_TURN", str(int(LAST_TURN)))

# KEYS: queue, bell, shares, what waits at a limit. ARGV: body TTL base, bell TTL, shares' TTL, and
# the entries as msgpack (redis-py takes 30 µs to write eight arguments): id, body, due time in ms
# or 0, ms until it is due, owner, step, turns that it waits, whether a retry. What is due Redis's
# clock says, whatever the writer's does. An entry that is in the set already is left as it is.
ENQUEUE = (
    GUARD
    + """
if redis.call('EXISTS', KEYS[1], KEYS[4]) == 0 then redis.call('UNLINK', KEYS[3]) end
"""
    + TURN
    + """
local added, ready = 0, 0
for _, entry in ipairs(cmsgpack.unpack(ARGV[4])) do
  local id, body, due, delay, owner, step, waits, again = unpack(entry)
  due = math.max(due, now + delay)
  if not redis.call('ZSCORE', KEYS[1], id) and redis.pcall('HEXISTS', KEYS[4], id) ~= 1 then
    local score = due
    if due <= now then
      score = turn(owner, step, waits, again)
      ready = ready + 1
    end
    redis.call('ZADD', KEYS[1], number(score), id)
    redis.call('SET', JOB .. id, body, 'PX', number(ARGV[1] + math.max(0, due - now)))
    added = added + 1
  end
end
if ready > 0 then redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
local ringing = redis.call('LLEN', KEYS[2])
for _ = ringing + 1, math.min(BELLS, ringing + ready) do redis.call('LPUSH', KEYS[2], '1') end
if ringing + ready > 0 then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
return added
""".replace("BELLS", str(BELLS)).replace("JOB", f"'{job_key_prefix}'")
)

# KEYS: as above. ARGV: ids as msgpack. What a worker holds it drops itself, with its lease.
WITHDRAW = (
    GUARD
    + """
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  if redis.call('EXISTS', IN_PROGRESS .. id) == 0 then
    redis.call('ZREM', KEYS[1], id)
    redis.call('DEL', JOB .. id)
  end
  local gate = redis.call('HGET', KEYS[4], id)
  if gate then
    redis.call('HDEL', KEYS[4], id)
    redis.pcall('ZREM', KEYS[4] .. ':' .. gate, id)
  end
end
""".replace("IN_PROGRESS", f"'{IN_PROGRESS}'").replace("JOB", f"'{job_key_prefix}'")
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the queue is told of a row: whose turn, when, and which attempt it waits for.

    ``due_at`` is a time of the caller's choice, ``due_in_s`` a delay from when Redis hears of it.
    ``skill`` is the skill's id. ``weight`` is the owner's share: with 2 it has two turns for
    everybody else's one.
    """

    execution_id: UUID
    attempt: int
    queue: str
    priority: str
    due_at: datetime | None = None
    due_in_s: float = 0.0
    owner: str = ""
    skill: str = ""
    weight: float = 1.0

    @property
    def id(self) -> str:
        """Return the id under which arq knows the entry."""
        return f"{self.execution_id}.{self.attempt}{SIGNS[self.priority]}"


class Places(NamedTuple):
    """Where executions stand: at which gate they wait, or how many are before them in line."""

    gates: dict[UUID, str]
    ahead: dict[UUID, int]


def serialize(value: dict[str, Any]) -> bytes:
    """Encode an arq job as msgpack; arq hands exceptions to it too, which become their text."""
    return msgspec.msgpack.encode(value, enc_hook=str)


class Job(TypedDict):
    """An entry's body: arq's try, function, arguments, keywords enqueue time (ms); then ours.

    Those are whose it is, which skill's, the step between its owner's turns, and the turns that it
    lets pass.
    """

    t: int | None
    f: str
    a: list[Any]
    k: dict[str, Any]
    et: int
    o: NotRequired[str]
    s: NotRequired[str]
    w: NotRequired[float]
    p: NotRequired[int]


DECODER = msgspec.msgpack.Decoder(Job)
ENCODER = msgspec.msgpack.Encoder()


def deserialize(data: bytes) -> dict[str, Any]:
    """Decode an arq job; raise DeserializationError, unread, for anything but msgpack of a job."""
    try:
        return dict(DECODER.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeserializationError("not a msgpack job; refused unread") from error


def as_lua(data: bytes) -> msgspec.Raw:
    """Return bytes as Lua's cmsgpack reads them: it does not know msgpack's binary type."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


class Queue:
    """Puts entries into Redis and tells which of them are there."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._script = redis.register_script(ENQUEUE)
        self._withdraw = redis.register_script(WITHDRAW)

    async def put(self, entries: Sequence[Entry]) -> int:
        """Enqueue and ring; return how many were new. Raises redis errors when Redis is away."""
        return sum([await self._put(name, some) for name, some in by_queue(entries).items()])

    async def withdraw(self, entries: Sequence[Entry]) -> None:
        """Take out what nobody is to run any more; it would count until a worker dropped it."""
        for name, some in by_queue(entries).items():
            await self._withdraw(keys=keys(name), args=[ENCODER.encode([e.id for e in some])])

    async def missing(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries that are neither in their queue nor beside it, at a limit."""
        return [
            entry
            for name, some in by_queue(entries).items()
            for entry in await self._missing(name, some)
        ]

    async def places(self, entries: Sequence[Entry]) -> Places:
        """Tell where entries stand, in one call. Raises redis errors when Redis is away."""
        pipeline = self._redis.pipeline(transaction=False)
        for entry in entries:
            pipeline.hget(parked_key(entry.queue), entry.id)
            pipeline.zrank(queue_key(entry.queue), entry.id)
        found = await pipeline.execute() if entries else []
        gates, ranks = found[::2], found[1::2]
        return Places(
            {e.execution_id: gate.decode() for e, gate in zip(entries, gates, strict=True) if gate},
            {e.execution_id: n for e, n in zip(entries, ranks, strict=True) if n is not None},
        )

    async def parked(self, queue: str) -> int:
        """Count the entries that wait at a limit."""
        return int(await self._redis.hlen(parked_key(queue)))  # type: ignore[misc]

    async def length(self, queue: str) -> int:
        """Count the entries that wait in a queue, or beside it at a limit.

        Those that run or are for later count too: they come back, or become due.
        """
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zcard(queue_key(queue))
        pipeline.hlen(parked_key(queue))
        return sum(await pipeline.execute())

    async def _missing(self, name: str, entries: Sequence[Entry]) -> list[Entry]:
        ids = [entry.id for entry in entries]
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zmscore(queue_key(name), ids)
        pipeline.hmget(parked_key(name), ids)
        places = await pipeline.execute(raise_on_error=False)
        known: set[str] = set()
        for found in places:
            if isinstance(found, ResponseError) and "WRONGTYPE" in str(found):
                continue  # something else holds no entry; the next put clears it away
            if isinstance(found, Exception):
                raise found
            known |= {i for i, place in zip(ids, found, strict=True) if place is not None}
        return [entry for entry in entries if entry.id not in known]

    async def _put(self, name: str, entries: Sequence[Entry]) -> int:
        now = int(time.time() * 1000)
        told: list[tuple[Any, ...]] = []
        for entry in entries:
            # A millisecond late rather than early: the row has its time in microseconds, and an
            # entry that comes before it is dropped.
            due = 0 if entry.due_at is None else to_unix_ms(entry.due_at) + 1
            step, waits = 1 / entry.weight, TURNS[entry.priority]
            body = ENCODER.encode(
                {
                    "t": None, "f": FUNCTION, "a": (str(entry.execution_id),), "k": {}, "et": now,
                    "o": entry.owner, "s": entry.skill, "w": step, "p": waits,
                }
            )  # fmt: skip
            delay = math.ceil(entry.due_in_s * 1000)
            again = entry.attempt > 0
            told.append((entry.id, as_lua(body), due, delay, entry.owner, step, waits, again))
        arguments: list[Any] = [ENTRY_TTL_MS, BELL_TTL_MS, SHARE_TTL_MS, ENCODER.encode(told)]
        return int(await self._script(keys=keys(name), args=arguments))


def keys(queue: str) -> list[str]:
    """Return the keys of a queue's scripts, in the order of GUARD."""
    return [queue_key(queue), bell_key(queue), share_key(queue), parked_key(queue)]


def by_queue(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Part entries by their queue, their order kept."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.queue, []).append(entry)
    return found
