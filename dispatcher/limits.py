"""What is refused before it is committed: submits beyond an owner's rate or a queue's length.

The rate is kept by the generic cell rate algorithm (ITU-T I.371; the leaky bucket as a meter): one
time an owner, at which its next submit would come evenly. A whole minute's share may come at once.
Nothing is refused because Redis is away.
"""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

import structlog
from redis.asyncio import Redis

from dispatcher.intake import Prepared
from shared.errors import QueueFull, RateLimited, SkillfleetError
from shared.executions import Executions, NewExecution
from shared.queue import Queue
from shared.redis import AWAY, rate_key
from shared.snapshot import Snapshot

log = structlog.get_logger(__name__)

PERIOD_MS = 60_000
"""A rate is a number of submits in so many milliseconds."""

# KEYS: the owner's time. ARGV: submits a period, period ms, submits wanted. Returns how many may
# come now, and after how many ms the next one may. Times are floats of ms; Redis's clock counts.
TAKE = """
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then redis.call('DEL', KEYS[1]) end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local limit, period, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local step = period / limit
local next = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now) or now)
next = math.min(next, now + period)
local taken = math.min(wanted, math.floor((now + period - next) / step + 1e-6))
next = next + taken * step
if taken > 0 then
  redis.call('SET', KEYS[1], string.format('%.17g', next), 'PX', math.ceil(next - now))
end
return {taken, math.max(1, math.ceil(next + step - now - period))}
"""


class Limits:
    """Refuses what is too much, for one dispatcher."""

    def __init__(self, redis: Redis, queue: Queue, executions: Executions) -> None:
        self._take = redis.register_script(TAKE)
        self._queue = queue
        self._executions = executions

    async def refusals(
        self, snapshot: Snapshot, asked: Sequence[Prepared]
    ) -> dict[UUID, SkillfleetError]:
        """Return why rows to be are refused, those that are, by their ids.

        A repeat under an idempotency key costs nothing. Raises Unavailable when Postgres is away.
        """
        bound = snapshot.settings.queue_limit
        rates = {
            share.owner: share.rate_limit for share in snapshot.shares.values() if share.rate_limit
        }
        counted = [one.new for one in asked if bound is not None or one.new.api_key_id in rates]
        holders = await asyncio.gather(*map(self._executions.holder, counted))
        fresh = [new for new, held in zip(counted, holders, strict=True) if held is None]
        if not fresh:
            return {}
        try:
            full = {} if bound is None else await self._full(bound, fresh)
            return full | await self._hasty(rates, [new for new in fresh if new.id not in full])
        except AWAY as error:
            log.warning("limits.redis.away", error=type(error).__name__)
            return {}

    async def _full(self, bound: int, fresh: Sequence[NewExecution]) -> dict[UUID, SkillfleetError]:
        refused: dict[UUID, SkillfleetError] = {}
        for queue in {new.queue for new in fresh}:
            room = max(0, bound - await self._queue.length(queue))
            late = [new for new in fresh if new.queue == queue][room:]
            refused |= {new.id: QueueFull(queue, bound) for new in late}
        return refused

    async def _hasty(
        self, rates: Mapping[str, int], fresh: Sequence[NewExecution]
    ) -> dict[UUID, SkillfleetError]:
        refused: dict[UUID, SkillfleetError] = {}
        for owner in {new.api_key_id for new in fresh} & rates.keys():
            own = [new for new in fresh if new.api_key_id == owner]
            arguments = [rates[owner], PERIOD_MS, len(own)]
            taken, after_ms = await self._take(keys=[rate_key(owner)], args=arguments)
            refused |= {
                new.id: RateLimited(rates[owner], after_ms / 1000) for new in own[int(taken) :]
            }
        return refused
