"""What a worker does to its queue in Redis: finish and take in one script, renew, take back.

A taken entry is leased: its in-progress key, arq's own, names the worker for a while, and its score
moves to the end of the lease. So what runs never lies in the way of what waits, and an entry whose
worker died comes back by itself.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from redis.asyncio import Redis

from shared.gates import PASSING
from shared.queue import ENCODER, GUARD, LAST_TURN, TURN, as_lua, keys
from shared.redis import BELL_TTL_MS, FINISHED_CHANNEL, SHARE_TTL_MS

PROMOTE = 1000
"""Entries for later, or left by dead workers, that one call puts in line once they are due."""

NAMES = {
    "IN_PROGRESS": f"'{in_progress_key_prefix}'",
    "JOB": f"'{job_key_prefix}'",
    "RETRY": f"'{retry_key_prefix}'",
    "LAST_TURN": str(int(LAST_TURN)),
    "PROMOTE": str(PROMOTE),
}


def script(text: str) -> str:
    """Return a script with the names of NAMES filled in."""
    for name, value in NAMES.items():
        text = text.replace(name, value)
    return GUARD + text


# KEYS: queue, bell, shares. ARGV: worker, entries wanted, lease ms, bell TTL, shares' TTL, channel,
# what to publish there or '', and as msgpack the entries that are done with: id, the ms after which
# it is to come again, or -1, and the gates that it passed. What the worker does not hold does not
# count.
#
# Returns ids, bodies and turns of what was taken, whether more are due, and ms until the next one
# is (-1: none).
CYCLE = script(
    TURN
    + PASSING
    + """
local worker, wanted, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
for _, settled in ipairs(cmsgpack.unpack(ARGV[8])) do
  local id, later, gates = unpack(settled)
  if redis.pcall('GET', IN_PROGRESS .. id) == worker then
    release(id, gates)
    if later < 0 then
      redis.call('ZREM', KEYS[1], id)
      redis.call('DEL', IN_PROGRESS .. id, JOB .. id, RETRY .. id)
    else
      redis.call('ZADD', KEYS[1], 'XX', number(now + later), id)
      redis.call('DEL', IN_PROGRESS .. id)
    end
  end
end
if ARGV[7] ~= '' then redis.call('PUBLISH', ARGV[6], ARGV[7]) end
local taken = {}
if wanted > 0 then
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '(LAST_TURN', now + 2, 'LIMIT', 0, PROMOTE)
  for _, id in ipairs(due) do
    local held = redis.call('PTTL', IN_PROGRESS .. id)
    if held > 0 then
      redis.call('ZADD', KEYS[1], 'XX', number(now + held), id)
    else
      local body = redis.pcall('GET', JOB .. id)
      local fine, job = pcall(cmsgpack.unpack, body)
      if not fine or type(job) ~= 'table' then job = {} end
      local owner = type(job.o) == 'string' and job.o or ''
      local step = tonumber(job.w) or 1
      local again = string.match(id, '%.(%d+)[+-]?$')
      redis.call('ZADD', KEYS[1], 'XX',
        number(turn(owner, step, tonumber(job.p) or 1000, again and again ~= '0')), id)
    end
  end
  local last = virtual
  while wanted > 0 do
    local ids = redis.call(
      'ZRANGEBYSCORE', KEYS[1], '-inf', LAST_TURN, 'WITHSCORES', 'LIMIT', 0, wanted)
    if #ids == 0 then break end
    for i = 1, #ids, 2 do
      local id, until_ms = ids[i], now + lease
      if redis.call('SET', IN_PROGRESS .. id, worker, 'NX', 'PX', lease) then
        local body = redis.pcall('GET', JOB .. id)
        taken[#taken + 1] = id
        taken[#taken + 1] = type(body) == 'string' and body or ''
        taken[#taken + 1] = ids[i + 1]
        wanted = wanted - 1
        local sign, waits = string.sub(id, -1), 1000
        if sign == '+' then waits = 0 elseif sign == '-' then waits = 2000 end
        local start = tonumber(ids[i + 1]) - waits
        if start > last and start <= LAST_TURN then last = start end
      else
        local held = redis.call('PTTL', IN_PROGRESS .. id)
        if held < 0 then
          redis.call('PEXPIRE', IN_PROGRESS .. id, lease)
          held = lease
        end
        until_ms = now + held
      end
      redis.call('ZADD', KEYS[1], 'XX', number(until_ms), id)
    end
  end
  if last > virtual then
    redis.call('HSET', KEYS[3], '', number(last))
  end
  if #taken > 0 or #due > 0 then redis.call('PEXPIRE', KEYS[3], ARGV[5]) end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local wait, more = -1, 0
if first then
  wait = math.max(0, tonumber(first) - now)
  if wait <= 2 then
    more = 1
    if redis.call('LLEN', KEYS[2]) == 0 then
      redis.call('LPUSH', KEYS[2], '1')
      redis.call('PEXPIRE', KEYS[2], ARGV[4])
    end
  end
end
return {taken, more, math.ceil(math.min(wait, 3600000))}
"""
)

# KEYS: queue, bell, shares. ARGV: worker, lease ms, and as msgpack ids with the gates they passed.
# What another holds is left alone; what nobody does, after a flush, still counts at its gates.
RENEW = script(
    PASSING
    + """
for _, held in ipairs(cmsgpack.unpack(ARGV[3])) do
  local id, gates = unpack(held)
  local holder = redis.pcall('GET', IN_PROGRESS .. id)
  if holder == ARGV[1] then
    redis.call('PEXPIRE', IN_PROGRESS .. id, ARGV[2])
    redis.call('ZADD', KEYS[1], 'XX', number(now + ARGV[2]), id)
  end
  if not holder or holder == ARGV[1] then
    for _, gate in ipairs(gates) do occupy(id, gate, tonumber(ARGV[2])) end
  end
end
"""
)

# KEYS: queue, bell, shares. ARGV: worker, lease ms, then the ids that it knows of. Whatever else it
# holds was taken by a call whose answer got lost, and goes back.
RECLAIM = script(
    """
local known = {}
for a = 3, #ARGV do known[ARGV[a]] = true end
local found = 0
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], now, now + ARGV[2] + 1000, 'LIMIT', 0, 10000)
for _, id in ipairs(ids) do
  if not known[id] and redis.pcall('GET', IN_PROGRESS .. id) == ARGV[1] then
    redis.call('DEL', IN_PROGRESS .. id)
    redis.call('ZADD', KEYS[1], 'XX', number(now), id)
    found = found + 1
  end
end
return found
"""
)


FOR_GOOD = -1


class Settled(NamedTuple):
    """An entry that is done with: for good, or to come again after ``later_ms``.

    ``gates`` are those that it passed, which its end opens for the next.
    """

    entry_id: bytes
    later_ms: int = FOR_GOOD
    gates: tuple[str, ...] = ()


class Leased(NamedTuple):
    """An entry that was taken: its id, its body as it stood in Redis, its turn."""

    id: bytes
    body: bytes
    turn: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What a call brought: entries, whether more are due, seconds until the next one is."""

    entries: list[Leased]
    more: bool
    next_s: float | None


class Leases:
    """One worker's hold on one queue."""

    def __init__(self, redis: Redis, queue: str, worker_id: str, lease_s: float) -> None:
        self._keys = keys(queue)
        self._worker = worker_id
        self._lease_ms = int(lease_s * 1000)
        self._cycle = redis.register_script(CYCLE)
        self._renew = redis.register_script(RENEW)
        self._reclaim = redis.register_script(RECLAIM)

    async def cycle(self, wanted: int, settled: Sequence[Settled], ended: str) -> Taken:
        """Settle entries, publish the ids of what ended (by blanks), take up to ``wanted``."""
        settlement = ENCODER.encode(
            [(as_lua(entry_id), later, gates) for entry_id, later, gates in settled]
        )
        arguments: list[Any] = [
            self._worker, wanted, self._lease_ms, BELL_TTL_MS, SHARE_TTL_MS,
            FINISHED_CHANNEL, ended, settlement,
        ]  # fmt: skip
        taken, more, wait_ms = await self._cycle(keys=self._keys, args=arguments)
        return Taken(
            [Leased(i, b, float(t)) for i, b, t in zip(*[iter(taken)] * 3, strict=True)],
            bool(more),
            None if wait_ms < 0 else wait_ms / 1000,
        )

    async def renew(self, held: Mapping[bytes, tuple[str, ...]]) -> None:
        """Hold these entries, and their places at the gates they passed, for another lease."""
        told = ENCODER.encode([(as_lua(entry_id), gates) for entry_id, gates in held.items()])
        await self._renew(keys=self._keys, args=[self._worker, self._lease_ms, told])

    async def reclaim(self, known: Collection[bytes]) -> int:
        """Give back what this worker holds without knowing of it; return how many."""
        args: list[Any] = [self._worker, self._lease_ms, *known]
        return int(await self._reclaim(keys=self._keys, args=args))
