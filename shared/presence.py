"""Workers that are there: one row each, beaten every few seconds.

In Postgres, so that a Redis that forgets everything does not make the fleet look dead.
"""

from dataclasses import dataclass
from typing import Any

import asyncpg

from shared.db import Pool

FRESH_S = 12.0
"""A heartbeat older than this is a worker that is gone (four beats of the default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a worker says of itself. ``sandbox`` is Sandbox.state(), None without that queue."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    slots: int
    running: int
    sandbox: dict[str, Any] | None


BEAT = """
INSERT INTO workers (id, host, pid, queues, handlers, slots, running, sandbox)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO UPDATE
   SET running = excluded.running, sandbox = excluded.sandbox, heartbeat_at = clock_timestamp()
"""

LIVE = """
SELECT id, queues, handlers, sandbox FROM workers
 WHERE stopped_at IS NULL AND heartbeat_at > clock_timestamp() - $1 * interval '1 second'
"""


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
    )


async def leave(pool: "Pool[asyncpg.Record]", worker_id: str) -> None:
    """Say that the worker has stopped: nothing of it runs any more."""
    await pool.execute("UPDATE workers SET stopped_at = clock_timestamp() WHERE id = $1", worker_id)


async def live(pool: "Pool[asyncpg.Record]", fresh_s: float = FRESH_S) -> list[asyncpg.Record]:
    """Return the workers with a fresh heartbeat: id, queues, handlers, sandbox."""
    rows: list[asyncpg.Record] = await pool.fetch(LIVE, fresh_s)
    return rows


async def forget(pool: "Pool[asyncpg.Record]") -> None:
    """Delete the rows of workers that have been gone for a day."""
    await pool.execute(
        "DELETE FROM workers WHERE heartbeat_at < clock_timestamp() - interval '1 day'"
    )
