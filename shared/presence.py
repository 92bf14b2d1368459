"""Workers that are there: one row each, beaten every few seconds.

In Postgres, so that a Redis that forgets everything does not make the fleet look dead.
"""

from dataclasses import dataclass
from typing import Any

import asyncpg

from shared.db import Pool

LIVE_WORKER = (
    "stopped_at IS NULL AND heartbeat_at > clock_timestamp() - lease_ms * interval '1 millisecond'"
)
"""A worker is there until it says that it stops, or is not heard of for its own lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a worker says of itself. ``sandbox`` is Sandbox.state(), None without that queue.

    ``rates`` are executions a second that it ends, by queue; ``consuming`` is false while its loops
    have not looked at their queues for a while.
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    slots: int
    running: int
    sandbox: dict[str, Any] | None
    lease_ms: int
    rates: dict[str, float]
    consuming: bool


BEAT = """
INSERT INTO workers (id, host, pid, queues, handlers, slots, running, sandbox, lease_ms, rates)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (id) DO UPDATE
   SET running = excluded.running, sandbox = excluded.sandbox, rates = excluded.rates,
       heartbeat_at = clock_timestamp(),
       consumed_at = CASE WHEN $11 THEN clock_timestamp() ELSE workers.consumed_at END
"""

LIVE = f"SELECT id, queues, handlers, sandbox, slots, rates FROM workers WHERE {LIVE_WORKER}"


async def beat(pool: "Pool[asyncpg.Record]", me: Presence) -> None:
    """Say that the worker lives, and how it is."""
    await pool.execute(
        BEAT,
        me.id,
        me.host,
        me.pid,
        list(me.queues),
        list(me.handlers),
        me.slots,
        me.running,
        me.sandbox,
        me.lease_ms,
        me.rates,
        me.consuming,
    )


async def leave(pool: "Pool[asyncpg.Record]", worker_id: str) -> None:
    """Say that the worker has stopped: nothing of it runs any more."""
    await pool.execute("UPDATE workers SET stopped_at = clock_timestamp() WHERE id = $1", worker_id)


async def live(pool: "Pool[asyncpg.Record]") -> list[asyncpg.Record]:
    """Return the workers that are there: id, queues, handlers, sandbox, slots, rates."""
    rows: list[asyncpg.Record] = await pool.fetch(LIVE)
    return rows


async def gone(pool: "Pool[asyncpg.Record]") -> set[str]:
    """Return the workers whose rows are there and who are not."""
    rows = await pool.fetch(f"SELECT id FROM workers WHERE NOT ({LIVE_WORKER})")
    return {row["id"] for row in rows}


async def forget(pool: "Pool[asyncpg.Record]") -> None:
    """Delete the rows of workers that have been gone for a day."""
    await pool.execute(
        "DELETE FROM workers WHERE heartbeat_at < clock_timestamp() - interval '1 day'"
    )
