"""Upkeep: what dead workers, lost bells and passed times leave behind.

One worker at a time does it, the leader; every worker tries, so that another takes over at once.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace
from uuid import UUID

import structlog

from shared import leader, presence, stale
from shared.db import LOST, transaction
from shared.errors import Unavailable
from shared.events import publish_finished
from shared.gates import Gates
from shared.models import QUEUES
from shared.queue import Entry
from shared.redis import AWAY
from worker.room import Room

log = structlog.get_logger(__name__)

UNHEARD_S = 2.0
"""Age at which a runnable row without an entry counts as unheard: its own ring is long over."""

THOROUGH_S = 3.0
"""Time between two rounds that look at every live row; the others only look for lost workers."""

HOUSEKEEPING_S = 600.0
"""Time between deletions of what has merely grown old."""

HOLDS = 4
"""Sweeps that a leader's place is kept for it."""

MAX_PAGES = 20


@dataclass(slots=True)
class Rounds:
    """What one worker's upkeep remembers, on the event loop's clock.

    ``steady_since`` is since when its own rounds have come in time: after an outage of Postgres
    every heartbeat is old, and no worker is lost for that. ``gone`` are the lost workers it knows.
    """

    steady_since: float
    last: float
    thorough: float = 0.0
    housekeeping: float = 0.0
    gone: set[str] = field(default_factory=set)


async def keep(room: Room) -> None:
    """Do a round every ``sweep_ms`` until cancelled; a failed round is logged and tried again.

    While Postgres stays away it is said once.
    """
    loop = asyncio.get_running_loop()
    sweep_s = room.settings.worker.sweep_ms / 1000
    lease_s = room.settings.worker.lease_ms / 1000
    rounds = Rounds(steady_since=loop.time() - lease_s, last=loop.time())
    failing = False
    while True:
        await asyncio.sleep(random.uniform(0.8, 1.0) * sweep_s)  # noqa: S311  # no secret
        try:
            await sweep_round(room, rounds)
            failing = False
        except Exception as error:
            rounds.steady_since = loop.time()
            away = isinstance(error, (Unavailable, *LOST))
            if not (away and failing):
                log.warning(
                    "upkeep.failed",
                    error=type(error).__name__,
                    exc_info=not away,
                    hint="It is tried again; if it stays, check SKILLS_DATABASE_URL and the server",
                )
            failing = away


async def sweep_round(room: Room, rounds: Rounds) -> None:
    """Do one round: what is this worker's own to do, and the leader's part if it is the leader."""
    loop = asyncio.get_running_loop()
    lease_s = room.settings.worker.lease_ms / 1000
    hold_s = HOLDS * room.settings.worker.sweep_ms / 1000
    leads = await leader.lead(room.pool, room.id, hold_s)
    now = loop.time()
    if now - rounds.last > max(lease_s / 2, hold_s):
        rounds.steady_since = now  # we were frozen, or Postgres was
    rounds.last = now
    thorough = now - rounds.thorough >= THOROUGH_S
    if thorough:
        rounds.thorough = now
        await disown(room)
    if not leads:
        rounds.gone.clear()
        return
    trusting = now - rounds.steady_since >= lease_s and await up_for(room, lease_s)
    if thorough:
        housekeeping = now - rounds.housekeeping >= HOUSEKEEPING_S
        await sweep(room, trusting=trusting, housekeeping=housekeeping)
        if housekeeping:
            rounds.housekeeping = now
    elif trusting and (gone := await presence.gone(room.pool)) - rounds.gone:
        await reap(room)
        rounds.gone = gone


async def sweep(room: Room, *, trusting: bool = True, housekeeping: bool = False) -> None:
    """Look at every live row once. ``trusting``: heartbeats can be judged by their age."""
    if trusting:
        await reap(room)
    async with transaction(room.pool) as connection:
        expired = await stale.expire(connection)
        if housekeeping:
            await stale.forget_keys(connection)
            await presence.forget(connection)
    await told(room, stale.Reaped([], []), expired)
    try:
        await ring(room)
        await mend(room)
    except AWAY as error:
        log.warning("upkeep.redis.away", error=type(error).__name__)
    if housekeeping:
        async with transaction(room.pool) as connection:  # of its own: it may fail
            await stale.add_partitions(connection)


async def up_for(room: Room, seconds: float) -> bool:
    """Tell whether Postgres has run for so long: before, no worker could write its heartbeat."""
    return bool(
        await room.pool.fetchval(
            "SELECT clock_timestamp() - pg_postmaster_start_time() > $1 * interval '1 second'",
            seconds,
        )
    )


async def reap(room: Room) -> None:
    """Take over what lost workers ran, however much it is."""
    while True:
        async with transaction(room.pool) as connection:
            reaped = await stale.reap(connection)
        await told(room, reaped, [])
        if len(reaped.again) + len(reaped.ended) < stale.BATCH:
            return


async def disown(room: Room) -> None:
    """Give back what this worker claimed without learning of it, each worker for itself."""
    lease_s = room.settings.worker.lease_ms / 1000
    async with transaction(room.pool) as connection:
        reaped = await stale.disown(connection, room.id, room.held, lease_s)
    await told(room, reaped, [])


async def told(room: Room, reaped: stale.Reaped, expired: list[Entry]) -> None:
    """Say what became of rows, once it is committed: who is woken must find the new state."""
    if reaped.again or reaped.ended or expired:
        counts = {"again": len(reaped.again), "ended": len(reaped.ended), "expired": len(expired)}
        log.warning("upkeep.reaped", **counts)
    await publish_finished(room.redis, [*reaped.ended, *(e.execution_id for e in expired)])
    try:
        await room.queue.withdraw(expired)
        await room.queue.put(reaped.again)
    except AWAY as error:
        log.warning("upkeep.redis.away", error=type(error).__name__)


async def ring(room: Room) -> None:
    """Enqueue every runnable row that the queue does not know and a live worker could run."""
    snapshot = await room.registry.snapshot()
    if not snapshot.settings.skills_enabled:
        return
    rows = await presence.live(room.pool)
    offered = sorted({name for row in rows for name in row["handlers"]})
    after: UUID | None = None
    for _ in range(MAX_PAGES):
        waiting = await stale.waiting(room.pool, offered, UNHEARD_S, after, snapshot.pauses)
        if not waiting:
            return
        missing: list[Entry] = await room.queue.missing(waiting)
        if missing:
            log.warning("upkeep.rung", executions=len(missing))
            await room.queue.put(
                [replace(entry, weight=snapshot.weight(entry.owner)) for entry in missing]
            )
        after = waiting[-1].execution_id


async def mend(room: Room) -> None:
    """Let in who waits at a limit that is not reached: it was raised, or who ran there died."""
    snapshot, gates = await room.registry.snapshot(), Gates(room.redis)
    for queue in QUEUES:
        crowded = await gates.crowded(queue)
        await gates.mend(queue, {gate: snapshot.limit(gate) for gate in crowded})
