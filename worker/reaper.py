"""Upkeep: what dead workers, lost bells and passed times leave behind.

One worker at a time does it, whichever gets the lock; every worker tries every few seconds.
"""

import asyncio
from uuid import UUID

import structlog

from shared import presence, stale
from shared.db import transaction
from shared.events import publish_finished
from shared.queue import Entry
from shared.redis import AWAY
from worker.room import Room

log = structlog.get_logger(__name__)

LOCK = 0x5F1EE8
"""The advisory lock of the upkeep, held for one round's transaction."""

UNHEARD_S = 2.0
"""Age at which a runnable row without an entry counts as unheard: its own ring is long over."""

MAX_PAGES = 20
HOUSEKEEPING_ROUNDS = 200
"""Rounds between deletions of what has merely grown old."""


async def keep(room: Room) -> None:
    """Do a round every ``sweep_ms`` until cancelled; a failed round is logged and tried again."""
    number = 0
    while True:
        await asyncio.sleep(room.settings.worker.sweep_ms / 1000)
        try:
            await disown(room)
            await sweep(room, housekeeping=number % HOUSEKEEPING_ROUNDS == 0)
        except Exception as error:
            log.warning("upkeep.failed", error=type(error).__name__, exc_info=True)
        number += 1


async def sweep(room: Room, *, housekeeping: bool = False) -> None:
    """Do one round, unless another worker is at it."""
    lost_after_s = room.settings.worker.lease_ms / 1000
    async with transaction(room.pool) as connection:
        if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", LOCK):
            return
        reaped = await stale.reap(connection, lost_after_s)
        expired = await stale.expire(connection)
        if housekeeping:
            await stale.forget_keys(connection)
            await presence.forget(connection)
    await told(room, reaped, expired)
    try:
        await ring(room)
    except AWAY as error:
        log.warning("upkeep.redis.away", error=type(error).__name__)
    if housekeeping:
        await grow(room)


async def grow(room: Room) -> None:
    """Make the partitions of the coming months; in its own transaction, which may fail."""
    async with transaction(room.pool) as connection:
        if await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", LOCK):
            await stale.add_partitions(connection)


async def disown(room: Room) -> None:
    """Give back what this worker claimed without learning of it, each worker for itself."""
    lost_after_s = room.settings.worker.lease_ms / 1000
    async with transaction(room.pool) as connection:
        reaped = await stale.reap(connection, lost_after_s, room.id, room.held)
    await told(room, reaped, [])


async def told(room: Room, reaped: stale.Reaped, expired: list[UUID]) -> None:
    """Say what became of rows, once it is committed: who is woken must find the new state."""
    if reaped.again or reaped.ended or expired:
        counts = {"again": len(reaped.again), "ended": len(reaped.ended), "expired": len(expired)}
        log.warning("upkeep.reaped", **counts)
    await publish_finished(room.redis, [*reaped.ended, *expired])
    try:
        await room.queue.put(reaped.again)
    except AWAY as error:
        log.warning("upkeep.redis.away", error=type(error).__name__)


async def ring(room: Room) -> None:
    """Enqueue every runnable row that the queue does not know and a live worker could run."""
    if not (await room.registry.snapshot()).settings.skills_enabled:
        return
    rows = await presence.live(room.pool)
    offered = sorted({name for row in rows for name in row["handlers"]})
    after: UUID | None = None
    for _ in range(MAX_PAGES):
        waiting = await stale.waiting(room.pool, offered, UNHEARD_S, after)
        if not waiting:
            return
        missing: list[Entry] = await room.queue.missing(waiting)
        if missing:
            log.warning("upkeep.rung", executions=len(missing))
            await room.queue.put(missing)
        after = waiting[-1].execution_id
