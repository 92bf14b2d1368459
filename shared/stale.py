"""Rows that need a hand: pending without an entry, expired, running on a worker that is gone.

Statements only; the worker's upkeep says when. All go by the index of live rows.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared.executions import CANCELLED, MOMENT, RUNNABLE
from shared.pauses import Pause, names, unpaused
from shared.presence import LIVE_WORKER
from shared.queue import Entry

BATCH = 1000

WAITING = f"""
SELECT id, attempt, queue, priority, api_key_id, skill_id FROM skill_executions
 WHERE ended IS NULL AND {RUNNABLE} AND handler = ANY($3::text[])
   AND created_at < clock_timestamp() - $1 * interval '1 second'
   AND ($2::uuid IS NULL OR id > $2)
   AND {unpaused(4)}
 ORDER BY id LIMIT {BATCH}
"""

EXPIRE = f"""
WITH late AS (
    SELECT id FROM skill_executions
     WHERE ended IS NULL AND status = 'pending' AND expires_at <= clock_timestamp()
     LIMIT {BATCH} FOR UPDATE SKIP LOCKED
)
UPDATE skill_executions e
   SET status = 'error', error_code = 'expired', finished_at = clock_timestamp(),
       error_message = 'The execution expired before a worker could run it'
  FROM late WHERE e.id = late.id AND e.status = 'pending'
RETURNING e.id, e.attempt, e.queue, e.priority, e.api_key_id, e.skill_id
"""

WAITING_FOR = f"""
SELECT id, handler FROM skill_executions
 WHERE id = ANY($1::uuid[]) AND {RUNNABLE} AND {unpaused(2)}
"""

# Hand-backs do not count against the budget, failed attempts do.
TAKE_BACK = f"""
WITH gone AS (
    SELECT id FROM skill_executions e
     WHERE ended IS NULL AND status = 'running' AND {{condition}}
     ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED
)
UPDATE skill_executions e
   SET status = CASE WHEN again THEN 'pending' ELSE 'error' END,
       error_code = CASE WHEN again THEN NULL
           WHEN e.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'worker_lost' END,
       error_message = CASE WHEN again THEN NULL
           WHEN e.cancel_requested_at IS NOT NULL THEN '{CANCELLED}'
           ELSE 'The worker that ran this execution was lost, and it may not run again by itself. '
                'Look at what it did, then submit it again' END,
       attempts = e.attempts || jsonb_build_object(
           'attempt', e.attempt, 'outcome', 'failed', 'errorCode', 'worker_lost',
           'errorMessage', 'The worker that ran this execution was lost', 'workerId', e.worker_id,
           'durationMs', (extract(epoch FROM clock_timestamp() - e.started_at) * 1000)::integer,
           'startedAt', {MOMENT.format("e.started_at")},
           'finishedAt', {MOMENT.format("clock_timestamp()")}),
       started_at = CASE WHEN again THEN NULL ELSE e.started_at END,
       worker_id = CASE WHEN again THEN NULL ELSE e.worker_id END,
       finished_at = CASE WHEN again THEN NULL ELSE clock_timestamp() END,
       duration_ms = CASE WHEN again THEN NULL ELSE
           (extract(epoch FROM clock_timestamp() - e.started_at) * 1000)::integer END
  FROM gone, LATERAL (
    SELECT idempotent AND cancel_requested_at IS NULL AND max_retries > jsonb_array_length(
               jsonb_path_query_array(attempts, '$[*] ? (@.outcome == "failed")')) AS again
      FROM skill_executions WHERE id = gone.id) budget
 WHERE e.id = gone.id AND e.status = 'running'
RETURNING e.id, e.attempt, e.queue, e.priority, e.status, e.api_key_id, e.skill_id
"""
# A worker is gone when its heartbeat is old or its row says that it stopped; one that never wrote a
# row is gone too.
LOST = TAKE_BACK.format(
    condition=f"NOT EXISTS (SELECT FROM workers WHERE workers.id = e.worker_id AND {LIVE_WORKER})"
)
# Claimed by a statement whose answer never came: the worker does not know that it has them.
UNHELD = TAKE_BACK.format(
    condition="worker_id = $1 AND NOT id = ANY($2::uuid[]) "
    "AND started_at < clock_timestamp() - $3 * interval '1 second'"
)


@dataclass(frozen=True, slots=True)
class Reaped:
    """What became of the rows of lost workers: to be rung again, and ended."""

    again: list[Entry]
    ended: list[UUID]


async def waiting(
    connection: Any,
    offered: Sequence[str],
    older_than_s: float,
    after: UUID | None = None,
    pauses: Iterable[Pause] = (),
) -> list[Entry]:
    """Return the runnable rows of those handlers older than that, a batch, ids above ``after``."""
    rows = await connection.fetch(WAITING, older_than_s, after, list(offered), *names(pauses))
    return [entry(row) for row in rows]


async def waiting_for(
    connection: Any, ids: Collection[UUID], pauses: Iterable[Pause] = ()
) -> dict[UUID, str]:
    """Return the handlers that rows wait for; what is not runnable is left out."""
    return {
        row["id"]: row["handler"]
        for row in await connection.fetch(WAITING_FOR, list(ids), *names(pauses))
    }


async def expire(connection: Any) -> list[Entry]:
    """End the pending rows whose time is over; return the entries that they had."""
    return [entry(row) for row in await connection.fetch(EXPIRE)]


async def reap(connection: Any) -> Reaped:
    """Take a batch of what workers that are gone ran: retry the idempotent, end the rest."""
    return reaped(await connection.fetch(LOST))


async def disown(
    connection: Any, worker_id: str, held: Collection[UUID], older_than_s: float
) -> Reaped:
    """Do the same with a living worker's rows, claimed so long ago, that it does not hold."""
    return reaped(await connection.fetch(UNHELD, worker_id, list(held), older_than_s))


def reaped(rows: Sequence[Any]) -> Reaped:
    """Part the rows into those to be run again and those that ended."""
    again = [row for row in rows if row["status"] == "pending"]
    return Reaped(
        [entry(row) for row in again],
        [row["id"] for row in rows if row["status"] != "pending"],
    )


def entry(row: Any) -> Entry:
    """Return the entry by which the queue knows a row."""
    return Entry(
        row["id"],
        row["attempt"],
        row["queue"],
        row["priority"],
        owner=row["api_key_id"],
        skill=str(row["skill_id"] or ""),
    )


async def forget_keys(connection: Any) -> None:
    """Delete idempotency keys that have expired."""
    await connection.execute("DELETE FROM execution_keys WHERE expires_at <= clock_timestamp()")


async def add_partitions(connection: Any) -> None:
    """Make the coming months' partitions, so that no row of theirs needs the default one."""
    # It waits for every reader of the table, and every later reader waits for it: not for long.
    await connection.execute("SET LOCAL lock_timeout = '1s'")
    await connection.execute("SELECT make_execution_partitions(3)")
