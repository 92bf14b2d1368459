"""Cancelling: what waits ends at once, what runs is told to stop.

A running row is only marked; its worker ends it, told by the channel or, when that message was
lost, by the marks that it reads with every heartbeat.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import structlog
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared.db import ACQUIRE_TIMEOUT_S, Pool, reaching
from shared.errors import Unavailable
from shared.events import publish_finished
from shared.executions import CANCELLED
from shared.history import FIELDS, Filter, from_row
from shared.models import Execution
from shared.queue import Entry, Queue
from shared.redis import AWAY, CANCEL_CHANNEL
from shared.states import Status

log = structlog.get_logger(__name__)

LOCKED_S = 10.0
"""How long rows that others hold locked are waited for before the caller has to ask again."""

BATCH = 500
"""Rows a statement: each locks what it writes, and workers wait for those locks."""

# One statement for both states: a row that is being claimed is waited for, and then met running.
MARK = f"""
UPDATE skill_executions e
   SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
       cancelled_by = coalesce(cancelled_by, {{actor}}),
       status = CASE status WHEN 'pending' THEN 'error' ELSE status END,
       error_code = CASE status WHEN 'pending' THEN 'cancelled' ELSE error_code END,
       error_message = CASE status WHEN 'pending' THEN '{CANCELLED}' ELSE error_message END,
       finished_at = CASE status WHEN 'pending' THEN clock_timestamp() END,
       retry_at = NULL
"""

CANCEL = f"""
{MARK.format(actor="$3")}
 WHERE id = $1 AND ($2::text IS NULL OR api_key_id = $2) AND status IN ('pending', 'running')
RETURNING {FIELDS}
"""

# Locked rows are left to the next round: waiting for them while holding others could meet, in a
# deadlock, with a worker's statement that ends many rows, in an order of its own.
CANCEL_SOME = f"""
WITH batch AS (
    SELECT id FROM skill_executions
     WHERE ended IS NULL AND status IN ('pending', 'running') AND cancel_requested_at IS NULL
       AND {{condition}} AND id <= ${{last}}
     ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED
)
{MARK.format(actor="${actor}")}
  FROM batch WHERE e.id = batch.id AND status IN ('pending', 'running')
RETURNING e.id, e.status, e.attempt, e.queue, e.priority
"""

LEFT = """
SELECT EXISTS (
    SELECT FROM skill_executions
     WHERE ended IS NULL AND status IN ('pending', 'running') AND cancel_requested_at IS NULL
       AND {condition} AND id <= ${last})
"""

REQUESTED = """
SELECT id FROM skill_executions
 WHERE id = ANY($1::uuid[]) AND status = 'running' AND worker_id = $2
   AND cancel_requested_at IS NOT NULL
"""


@dataclass(slots=True)
class Counts:
    """What a bulk cancellation did: ended at once, and told to stop."""

    ended: int = 0
    stopping: int = 0


async def cancel(
    pool: "Pool[asyncpg.Record]", redis: Redis, execution_id: UUID, owner: str | None, actor: str
) -> Execution | None:
    """Cancel an execution and return it: ended, or running and told to stop.

    None when it has ended already, does not exist, or is not the owner's (any owner's for None).
    """
    async with reaching(), pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
        row = await connection.fetchrow(CANCEL, execution_id, owner, actor)
    if row is None:
        return None
    execution = from_row(row)
    if execution.finished:
        await withdraw(redis, [row])
    else:
        await tell(redis, [execution_id])
    return execution


async def cancel_all(
    pool: "Pool[asyncpg.Record]", redis: Redis, narrowed: Filter, actor: str
) -> Counts:
    """Cancel whatever the filter leaves of what was submitted until now, batch by batch.

    Raises Unavailable, also when rows stay locked; the same call again goes on from there.
    """
    condition, values = narrowed.where()
    places = {"condition": condition, "last": len(values) + 1, "actor": len(values) + 2}
    last, counts, pause_s = uuid7(), Counts(), 0.02
    while pause_s < LOCKED_S / 2:
        async with reaching(), pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
            rows = await connection.fetch(CANCEL_SOME.format(**places), *values, last, actor)
            if not rows and not await connection.fetchval(LEFT.format(**places), *values, last):
                return counts
        if not rows:
            await asyncio.sleep(pause_s)
            pause_s *= 2
            continue
        ended = [row for row in rows if row["status"] == Status.ERROR]
        stopping = [row["id"] for row in rows if row["status"] == Status.RUNNING]
        await withdraw(redis, ended)
        await tell(redis, stopping)
        counts.ended += len(ended)
        counts.stopping += len(stopping)
    raise Unavailable("Some executions are locked in the database. Cancel again to go on")


async def requested(
    pool: "Pool[asyncpg.Record]", ids: Collection[UUID], worker_id: str
) -> list[UUID]:
    """Return those that run on this worker and are to be stopped."""
    if not ids:
        return []
    async with reaching(), pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
        return [row["id"] for row in await connection.fetch(REQUESTED, list(ids), worker_id)]


async def withdraw(redis: Redis, rows: "Sequence[asyncpg.Record]") -> None:
    """Say that these ended, and take them out of their queues, or leave that to the workers."""
    await publish_finished(redis, [row["id"] for row in rows])
    entries = [Entry(row["id"], row["attempt"], row["queue"], row["priority"]) for row in rows]
    try:
        await Queue(redis).withdraw(entries)
    except AWAY as error:
        log.debug("cancel.withdraw.failed", error=type(error).__name__, executions=len(rows))


async def tell(redis: Redis, ids: Sequence[UUID]) -> None:
    """Tell the workers to stop these; a Redis that is away leaves it to their heartbeat."""
    if not ids:
        return
    try:
        await redis.publish(CANCEL_CHANNEL, " ".join(map(str, ids)))
    except AWAY as error:
        log.warning("cancel.publish.failed", error=type(error).__name__, executions=len(ids))
