"""Why executions are pending: what stands in the way of each, the most decisive thing first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
from redis.asyncio import Redis

from dispatcher.intake import Prepared
from dispatcher.offers import Offers
from shared import presence
from shared.db import ACQUIRE_TIMEOUT_S, Pool, reaching
from shared.gates import ALL, OWNER
from shared.models import Execution, PendingReason, trusted
from shared.queue import Entry, Places, Queue
from shared.redis import AWAY
from shared.registry import Registry
from shared.snapshot import Snapshot
from shared.states import Status

PENDING = """
SELECT id, attempt, queue, priority, api_key_id, skill_id, skill_name, handler, approval,
       CASE WHEN not_before > clock_timestamp() THEN not_before END AS not_before,
       CASE WHEN retry_at > clock_timestamp() THEN retry_at END AS retry_at
  FROM skill_executions WHERE id = ANY($1::uuid[]) AND status = 'pending'
"""

QUEUED = PendingReason(code="queued", message="It waits for a free worker")
UNKNOWN = PendingReason(
    code="queue_unavailable",
    message="Redis can't be asked right now; the execution is committed and runs once it is back",
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The live workers: what they offer, and the executions a second they end, by queue."""

    offered: frozenset[str]
    rates: Mapping[str, float]


class Reasons:
    """Works them out for one dispatcher."""

    def __init__(
        self, pool: "Pool[asyncpg.Record]", redis: Redis, registry: Registry, offers: Offers
    ) -> None:
        self._pool = pool
        self._queue = Queue(redis)
        self._registry = registry
        self._offers = offers

    async def explained(self, found: Sequence[Execution]) -> list[Execution]:
        """Return the executions with the reasons of those that are pending.

        Two reads of Postgres and one call to Redis for all of them, none when nothing is pending.
        """
        pending = [execution.id for execution in found if execution.status is Status.PENDING]
        if not pending:
            return list(found)
        reasons = await self._reasons(pending)
        return [with_reason(execution, reasons.get(execution.id)) for execution in found]

    def fresh(self, snapshot: Snapshot, prepared: Prepared) -> PendingReason:
        """Return the reason of a row that was just committed, by what is known without asking."""
        new = prepared.new
        if (reason := held_back(snapshot, new.queue, new.skill_name, new.api_key_id)) is not None:
            return reason
        if new.not_before is not None and new.not_before > datetime.now(UTC):
            return early(new.not_before)
        return QUEUED if self._offers.known(new.handler) else no_worker(new.handler)

    async def _reasons(self, ids: Sequence[UUID]) -> dict[UUID, PendingReason]:
        snapshot = await self._registry.snapshot()
        async with reaching(), self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
            rows = await connection.fetch(PENDING, list(ids))
            live = await connection.fetch(presence.LIVE)
        fleet = Fleet(
            frozenset(name for row in live for name in row["handlers"]),
            {
                queue: sum(row["rates"].get(queue, 0.0) for row in live)
                for queue in {row["queue"] for row in rows}
            },
        )
        found = {row["id"]: decided(snapshot, fleet, row) for row in rows}
        queued = [row for row in rows if found[row["id"]] is None]
        places = await self._places(queued)
        return {row["id"]: found[row["id"]] or placed(snapshot, fleet, row, places) for row in rows}

    async def _places(self, rows: Sequence[Any]) -> Places | None:
        entries = [Entry(r["id"], r["attempt"], r["queue"], r["priority"]) for r in rows]
        try:
            return await self._queue.places(entries)
        except AWAY:
            return None


def decided(snapshot: Snapshot, fleet: Fleet, row: Any) -> PendingReason | None:
    """Return a reason that does not depend on the queue; None when there is none."""
    if row["approval"] == "required":
        message = "It waits for somebody to approve it"
        return PendingReason(code="approval", message=message)
    held = held_back(snapshot, row["queue"], row["skill_name"], row["api_key_id"])
    if held is not None:
        return held
    if row["not_before"] is not None:
        return early(row["not_before"])
    if row["retry_at"] is not None:
        message = f"Attempt {row['attempt']} failed; the next one is due at retryAt"
        return PendingReason(code="retry_at", message=message, at=row["retry_at"])
    return None if row["handler"] in fleet.offered else no_worker(row["handler"])


def held_back(snapshot: Snapshot, queue: str, skill: str, owner: str) -> PendingReason | None:
    """Return what an operator has switched off or paused, if anything."""
    if not snapshot.settings.skills_enabled:
        message = (
            "Skills execution is disabled. An operator can enable it with "
            "`skillfleet settings set skillsEnabled true`"
        )
        return PendingReason(code="switch_off", message=message)
    for code, kind, name in (
        ("queue_paused", "queue", queue),
        ("skill_paused", "skill", skill),
        ("owner_paused", "owner", owner),
    ):
        if (kind, name) in snapshot.pauses:
            message = (
                f"The {kind} {name} is paused. An operator can let it go on with "
                f"`skillfleet pauses remove {kind} {name}`"
            )
            return PendingReason.model_validate({"code": code, "message": message})
    return None


def early(moment: datetime) -> PendingReason:
    """Say that its time has not come."""
    message = "It is not to start before its notBefore"
    return PendingReason(code="not_before", message=message, at=moment)


def no_worker(handler: str) -> PendingReason:
    """Say that nobody is there who could run it."""
    return PendingReason(
        code="no_worker",
        message=f"No live worker offers the handler {handler}. Start one that does; "
        "`skillfleet workers` shows those there are",
    )


def placed(snapshot: Snapshot, fleet: Fleet, row: Any, places: Places | None) -> PendingReason:
    """Return the reason that the queue tells: a limit, or the place in line."""
    if places is None:
        return UNKNOWN
    if (gate := places.gates.get(row["id"])) is not None:
        return limit_reached(snapshot, gate)
    if (ahead := places.ahead.get(row["id"])) is None:
        return QUEUED
    rate = fleet.rates.get(row["queue"], 0.0)
    wait_ms = round(1000 * (ahead + 1) / rate) if rate > 0 else None
    message = f"{ahead} go before it" if ahead else "It is the next one"
    return PendingReason(
        code="queued", message=message, position=ahead + 1, expected_wait_ms=wait_ms
    )


def limit_reached(snapshot: Snapshot, gate: str) -> PendingReason:
    """Say whose limit it waits for."""
    limit = snapshot.limit(gate)
    bound = f"{limit} at once" if limit is not None else "at once, until just now,"
    if gate == ALL:
        code, text = "fleet_limit", f"The fleet runs {bound}; an operator can raise maxRunning"
    elif gate.startswith(OWNER):
        code, text = (
            "owner_limit",
            (f"Its owner runs {bound}; an operator can raise the key's concurrencyLimit"),
        )
    else:
        code, text = (
            "skill_limit",
            (f"Its skill runs {bound}; an operator can raise the skill's concurrencyLimit"),
        )
    return PendingReason.model_validate({"code": code, "message": text})


def with_reason(execution: Execution, reason: PendingReason | None) -> Execution:
    """Return the execution with its reason."""
    if reason is None:
        return execution
    return trusted(Execution, {**execution.__dict__, "pending_reason": reason})
