"""What operators look at: how much waits and runs, what ended lately, who works."""

from datetime import datetime
from typing import Any

import asyncpg

from shared.db import Pool, surveying
from shared.executions import RUNNABLE
from shared.models import QUEUES, Model
from shared.presence import LIVE_WORKER

WINDOW_S = 3600
"""How far back ``stats`` looks, in seconds."""

NEWEST = 20_000
"""Executions that ``stats`` looks at, the newest of the window: the same cost at any size."""


class Stats(Model):
    """One owner's executions, or everybody's. The counts of what ended are those of ``windowMs``.

    It is an hour, or less where more than 20,000 were submitted in it. ``runMs`` and ``waitMs`` are
    medians of the same: from start to end, from submit to start.
    """

    pending: int
    running: int
    approval: int
    oldest_pending_ms: int | None
    window_ms: int
    submitted: int
    success: int
    error: int
    timeout: int
    errors: dict[str, int]
    run_ms: float | None
    wait_ms: float | None


class QueueFigures(Model):
    """One queue. ``waiting`` may start now, ``later`` has a time, ``parked`` waits at a limit.

    ``rate`` is executions a second that ended lately, ``expectedWaitMs`` what that means for one
    that comes now; ``parked`` is null, and counted among the waiting, while Redis is away.
    """

    name: str
    paused: bool
    waiting: int
    later: int
    approval: int
    parked: int | None
    running: int
    oldest_wait_ms: int | None
    workers: int
    slots: int
    rate: float
    expected_wait_ms: int | None


class WorkerFigures(Model):
    """One worker: ``live`` while it is heard of, ``consuming`` while it looks at its queues."""

    id: str
    host: str
    pid: int
    live: bool
    consuming: bool
    queues: list[str]
    handlers: list[str]
    slots: int
    running: int
    rates: dict[str, float]
    sandbox: dict[str, Any] | None
    lease_ms: int
    heartbeat_ms: int
    started_at: datetime
    stopped_at: datetime | None


LIVE = """
SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
       count(*) FILTER (WHERE status = 'running') AS running,
       count(*) FILTER (WHERE approval = 'required') AS approval,
       extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE status = 'pending'))
           AS oldest
  FROM skill_executions WHERE ended IS NULL AND {owner}
"""

RECENT = f"""
WITH recent AS MATERIALIZED (
    SELECT ended, error_code, created_at, started_at, finished_at FROM skill_executions
     WHERE id >= execution_id_floor(clock_timestamp() - interval '{WINDOW_S} seconds') AND {{owner}}
     ORDER BY id DESC LIMIT {NEWEST}
)
SELECT count(*) AS submitted,
       count(*) FILTER (WHERE ended = 'success') AS success,
       count(*) FILTER (WHERE ended = 'error') AS error,
       count(*) FILTER (WHERE ended = 'timeout') AS timeout,
       extract(epoch FROM clock_timestamp() - min(created_at)) AS span,
       percentile_cont(0.5) WITHIN GROUP (
           ORDER BY extract(epoch FROM finished_at - started_at)::float8) AS run,
       percentile_cont(0.5) WITHIN GROUP (
           ORDER BY extract(epoch FROM started_at - created_at)::float8) AS wait,
       (SELECT coalesce(jsonb_object_agg(error_code, n), '{{{{}}}}') FROM (
            SELECT error_code, count(*) AS n FROM recent WHERE error_code IS NOT NULL
             GROUP BY error_code) coded) AS errors
  FROM recent
"""

QUEUED = f"""
SELECT queue,
       count(*) FILTER (WHERE {RUNNABLE}) AS waiting,
       count(*) FILTER (WHERE status = 'running') AS running,
       count(*) FILTER (WHERE status = 'pending' AND approval = 'required') AS approval,
       count(*) FILTER (WHERE status = 'pending' AND approval IS DISTINCT FROM 'required'
           AND greatest(not_before, retry_at) > clock_timestamp()) AS later,
       extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE {RUNNABLE})) AS oldest
  FROM skill_executions WHERE ended IS NULL GROUP BY queue
"""

WORKERS = f"""
SELECT id, host, pid, ({LIVE_WORKER}) AS live, queues, handlers, slots, running, rates, sandbox,
       lease_ms, started_at, stopped_at,
       consumed_at > heartbeat_at - interval '1 second' AS consuming,
       (extract(epoch FROM clock_timestamp() - heartbeat_at) * 1000)::bigint AS heartbeat_ms
  FROM workers ORDER BY stopped_at IS NOT NULL, started_at, id
"""


async def stats(pool: "Pool[asyncpg.Record]", owner: str | None) -> Stats:
    """Return an owner's figures; everybody's for None. Raises Unavailable."""
    condition, arguments = ("true", []) if owner is None else ("api_key_id = $1", [owner])
    async with surveying(pool) as connection:
        live = await connection.fetchrow(LIVE.format(owner=condition), *arguments)
        recent = await connection.fetchrow(RECENT.format(owner=condition), *arguments)
    whole = recent["submitted"] < NEWEST
    return Stats(
        pending=live["pending"],
        running=live["running"],
        approval=live["approval"],
        oldest_pending_ms=ms(live["oldest"]),
        window_ms=WINDOW_S * 1000 if whole else ms(recent["span"]) or 0,
        submitted=recent["submitted"],
        success=recent["success"],
        error=recent["error"],
        timeout=recent["timeout"],
        errors=recent["errors"],
        run_ms=None if recent["run"] is None else round(recent["run"] * 1000, 1),
        wait_ms=None if recent["wait"] is None else round(recent["wait"] * 1000, 1),
    )


async def queues(
    pool: "Pool[asyncpg.Record]", paused: frozenset[tuple[str, str]], parked: dict[str, int] | None
) -> list[QueueFigures]:
    """Return every queue's figures; ``parked`` None is a Redis that is away. Raises Unavailable."""
    async with surveying(pool) as connection:
        rows = {row["queue"]: row for row in await connection.fetch(QUEUED)}
        workers = [row for row in await connection.fetch(WORKERS) if row["live"]]
    return [
        queue_figures(name, rows.get(name), workers, ("queue", name) in paused, parked)
        for name in QUEUES
    ]


def queue_figures(
    name: str, row: Any, workers: list[Any], paused: bool, parked: dict[str, int] | None
) -> QueueFigures:
    """Put one queue's figures together."""
    serving = [worker for worker in workers if name in worker["queues"]]
    rate = sum(worker["rates"].get(name, 0.0) for worker in serving)
    held = None if parked is None else parked.get(name, 0)
    runnable = row["waiting"] if row else 0
    waiting = max(0, runnable - (held or 0))
    return QueueFigures(
        name=name,
        paused=paused,
        waiting=waiting,
        later=row["later"] if row else 0,
        approval=row["approval"] if row else 0,
        parked=held,
        running=row["running"] if row else 0,
        oldest_wait_ms=ms(row["oldest"]) if row else None,
        workers=len(serving),
        slots=sum(worker["slots"] for worker in serving),
        rate=round(rate, 3),
        expected_wait_ms=0 if not waiting else round(1000 * waiting / rate) if rate > 0 else None,
    )


async def workers(pool: "Pool[asyncpg.Record]") -> list[WorkerFigures]:
    """Return the workers, those that are there first; the others stay for a day."""
    async with surveying(pool) as connection:
        rows = await connection.fetch(WORKERS)
    return [WorkerFigures(**row) for row in rows]


def ms(seconds: Any) -> int | None:
    """Return seconds as whole milliseconds."""
    return None if seconds is None else round(float(seconds) * 1000)
