"""Limits on what runs at once: of the fleet, of an owner, of a skill.

A gate is what has a limit: ``all``, ``owner:<id>``, ``skill:<id>``. It counts the entries that run,
each until the end of its lease, so that a dead worker's come free by themselves. An entry that
finds a gate full leaves the queue and waits beside it, with the turn that it had; whatever ends at
the gate lets the first of them back. So what may not run never lies in the way of what may.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.models import QUEUES
from shared.queue import BELLS, ENCODER, GUARD, IN_PROGRESS, keys
from shared.redis import (
    BELL_TTL_MS,
    GATE_TTL_MS,
    bell_key,
    parked_key,
    queue_key,
    running_key,
)

ALL, OWNER, SKILL = "all", "owner:", "skill:"

LET_IN = 1000
"""Entries that one look at a gate lets back into line."""

NAMES = {
    "BELL_TTL": str(BELL_TTL_MS),
    "BELLS": str(BELLS),
    "GATE_TTL": str(GATE_TTL_MS),
    "LET_IN": str(LET_IN),
    "QUEUE_NAMES": ", ".join(f"'{queue}'" for queue in QUEUES),
    "IN_PROGRESS": f"'{IN_PROGRESS}'",
    "RUNNING": f"'{running_key('')}'",
    "PARKED": f"'{parked_key('')}'",
    "QUEUE": f"'{queue_key('')}'",
    "BELL": f"'{bell_key('')}'",
}


def named(text: str) -> str:
    """Return a script with the names of NAMES filled in, longer names first."""
    for name in sorted(NAMES, key=len, reverse=True):
        text = text.replace(name, NAMES[name])
    return text


# `unpark` lets the first of those who wait at a gate back into line, and rings; `release` gives a
# place back. Whatever else somebody put under the names goes.
PASSING = named("""
local function own(key, kind)
  local there = redis.call('TYPE', key).ok
  if there ~= 'none' and there ~= kind then redis.call('DEL', key) end
  return key
end
local function unpark(queue, gate, count)
  local line = own(PARKED .. queue .. ':' .. gate, 'zset')
  local ids = redis.call('ZPOPMIN', line, count)
  for i = 1, #ids, 2 do
    redis.call('HDEL', own(PARKED .. queue, 'hash'), ids[i])
    redis.call('ZADD', own(QUEUE .. queue, 'zset'), 'NX', ids[i + 1], ids[i])
  end
  local bell = own(BELL .. queue, 'list')
  if #ids > 0 and redis.call('LLEN', bell) < BELLS then
    redis.call('LPUSH', bell, '1')
    redis.call('PEXPIRE', bell, BELL_TTL)
  end
  return #ids / 2
end
local function release(id, gates)
  for _, gate in ipairs(gates) do
    if redis.call('ZREM', own(RUNNING .. gate, 'zset'), id) == 1 then
      for _, queue in ipairs({QUEUE_NAMES}) do
        if unpark(queue, gate, 1) > 0 then break end
      end
    end
  end
end
local function occupy(id, gate, lease)
  local key = own(RUNNING .. gate, 'zset')
  redis.call('ZADD', key, number(now + lease), id)
  redis.call('PEXPIRE', key, GATE_TTL)
end
""")

# KEYS: queue, bell, shares. ARGV: worker, lease ms, the queue's name, and as msgpack the entries:
# id, turn, gates with their limits. Returns 1 for each that may run, 0 for each that may not, which
# then waits at the first gate that is full; one that the worker does not hold any more does not.
ADMIT = (
    GUARD
    + PASSING
    + named("""
local worker, lease, queue = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local passed = {}
for at, entry in ipairs(cmsgpack.unpack(ARGV[4])) do
  local id, score, gates = unpack(entry)
  local full = nil
  if redis.pcall('GET', IN_PROGRESS .. id) ~= worker then full = '' end
  for _, gate in ipairs(gates) do
    if full then break end
    local key = own(RUNNING .. gate[1], 'zset')
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    local others = redis.call('ZCARD', key) - (redis.call('ZSCORE', key, id) and 1 or 0)
    if others >= gate[2] then full = gate[1] end
  end
  passed[at] = full and 0 or 1
  if not full then
    for _, gate in ipairs(gates) do occupy(id, gate[1], lease) end
  elseif full ~= '' then
    local parked = PARKED .. queue
    redis.call('ZREM', KEYS[1], id)
    redis.call('DEL', IN_PROGRESS .. id)
    redis.call('HSET', own(parked, 'hash'), id, full)
    redis.call('ZADD', own(parked .. ':' .. full, 'zset'), number(score), id)
    redis.call('SADD', own(parked .. ':gates', 'set'), full)
    for _, key in ipairs({parked, parked .. ':' .. full, parked .. ':gates'}) do
      redis.call('PEXPIRE', key, GATE_TTL)
    end
  end
end
return passed
""")
)

# KEYS: queue, bell, shares. ARGV: the queue's name, and as msgpack the gates with their limits, -1
# for none any more.
MEND = (
    GUARD
    + PASSING
    + named("""
local queue, count = ARGV[1], 0
for _, gate in ipairs(cmsgpack.unpack(ARGV[2])) do
  local name, limit = unpack(gate)
  local key = own(RUNNING .. name, 'zset')
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local free = limit < 0 and LET_IN or math.min(LET_IN, limit - redis.call('ZCARD', key))
  if free > 0 then count = count + unpark(queue, name, free) end
  if redis.call('EXISTS', PARKED .. queue .. ':' .. name) == 0 then
    redis.call('SREM', own(PARKED .. queue .. ':gates', 'set'), name)
  end
end
return count
""")
)


class Limit(NamedTuple):
    """A gate and how many may run at once."""

    gate: str
    limit: int


class Admission(NamedTuple):
    """An entry that wants to run: its turn, and the gates that it has to pass."""

    entry_id: bytes
    turn: float
    limits: tuple[Limit, ...]


class Gates:
    """Lets entries through, one queue's at a time."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._admit = redis.register_script(ADMIT)
        self._mend = redis.register_script(MEND)

    async def admit(
        self, queue: str, asked: Sequence[Admission], worker_id: str, lease_s: float
    ) -> set[bytes]:
        """Return the ids of those that may run; the others are not in the queue any more.

        Raises redis errors when Redis is away.
        """
        told = ENCODER.encode([(one.entry_id.decode(), one.turn, one.limits) for one in asked])
        arguments: list[Any] = [worker_id, round(lease_s * 1000), queue, told]
        passed = await self._admit(keys=keys(queue), args=arguments)
        return {one.entry_id for one, fine in zip(asked, passed, strict=True) if fine}

    async def mend(self, queue: str, limits: Mapping[str, int | None]) -> int:
        """Let in who waits at gates that have room: a limit was raised, or a worker died.

        ``limits`` holds every gate that somebody waits at; None has no limit any more. Returns how
        many were let in.
        """
        told = [(gate, -1 if limit is None else limit) for gate, limit in limits.items()]
        if not told:
            return 0
        return int(await self._mend(keys=keys(queue), args=[queue, ENCODER.encode(told)]))

    async def crowded(self, queue: str) -> list[str]:
        """Return the gates that somebody of this queue waits at."""
        key = f"{parked_key(queue)}:gates"
        try:
            found = await self._redis.smembers(key)  # type: ignore[misc]
        except ResponseError:  # whatever else somebody put there goes, as in the scripts
            await self._redis.unlink(key)
            return []
        return sorted(gate.decode(errors="replace") for gate in found)
