"""Erasing an owner: what is asked for is a row, what is done is done by a worker, batch by batch.

Each step can be done again, so that whoever takes over goes on where the last one was killed; the
counts are written in the transaction that removed what they count.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from shared import audit
from shared.db import Pool, reaching, transaction
from shared.errors import InvalidInput
from shared.models import SYSTEM, Model

BATCH = 1000

KEPT = (SYSTEM, "anonymous")
"""Owners that are everybody's: the built-in skills, and what management does for no owner."""

FIELDS = "id, owner, requested_at, requested_by, finished_at, removed"

# The rows of a batch, and what is a row or few; `$1` is the owner.
STEPS: dict[str, str] = {
    "executions": f"""
        DELETE FROM skill_executions WHERE id IN (
            SELECT id FROM skill_executions WHERE api_key_id = $1 AND ended IS NOT NULL
             ORDER BY id DESC LIMIT {BATCH})
    """,
    "executionKeys": "DELETE FROM execution_keys WHERE owner = $1",
    "skills": "DELETE FROM skills WHERE api_key_id = $1",
    "pauses": "DELETE FROM pauses WHERE kind = 'owner' AND name = $1",
    "apiKeys": "DELETE FROM api_keys WHERE id = $1",
}


class Erasure(Model):
    """What was asked for, and what has been removed so far: counts by kind.

    ``finishedAt`` is null while something is left: executions that run have to end first.
    """

    id: UUID
    owner: str
    requested_at: datetime
    requested_by: str
    finished_at: datetime | None
    removed: dict[str, int]


async def request(pool: "Pool[asyncpg.Record]", owner: str, actor: str) -> Erasure:
    """Ask for an owner's erasure, and revoke its key at once; an open one is returned as it is.

    Tell the registry that something changed. Raises InvalidInput for an owner that can't go.
    """
    if owner in KEPT:
        raise InvalidInput(f"The owner {owner} can't be erased: it is everybody's")
    async with transaction(pool) as connection:
        await connection.execute(
            "UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) "
            "WHERE id = $1",
            owner,
        )
        row = await connection.fetchrow(
            f"SELECT {FIELDS} FROM erasures WHERE owner = $1 AND finished_at IS NULL", owner
        )
        if row is None:
            row = await connection.fetchrow(
                "INSERT INTO erasures (id, owner, requested_by) VALUES ($1, $2, $3) "
                f"RETURNING {FIELDS}",
                uuid7(),
                owner,
                actor,
            )
            await audit.record(connection, actor, "owner.erase", owner, {})
    return Erasure(**row)


async def get(pool: "Pool[asyncpg.Record]", erasure_id: UUID) -> Erasure | None:
    """Return an erasure; None when there is none of that id."""
    async with reaching():
        row = await pool.fetchrow(f"SELECT {FIELDS} FROM erasures WHERE id = $1", erasure_id)
    return None if row is None else Erasure(**row)


async def open_ones(pool: "Pool[asyncpg.Record]") -> list[Erasure]:
    """Return what is still to be done, the oldest first."""
    async with reaching():
        rows = await pool.fetch(
            f"SELECT {FIELDS} FROM erasures WHERE finished_at IS NULL ORDER BY id LIMIT 100"
        )
    return [Erasure(**row) for row in rows]


async def remove(pool: "Pool[asyncpg.Record]", erasure: Erasure, kind: str) -> int:
    """Do one step of STEPS; return how many rows went, BATCH where there may be more."""
    async with transaction(pool) as connection:
        done = await connection.execute(STEPS[kind], erasure.owner)
        count = int(done.rpartition(" ")[2])
        await note(connection, erasure, kind, count)
    return count


async def note(connection: Any, erasure: Erasure, kind: str, count: int) -> None:
    """Add to the count of what was removed."""
    await connection.execute(
        "UPDATE erasures SET removed = removed || jsonb_build_object("
        "$2::text, coalesce((removed ->> $2)::bigint, 0) + $3::bigint) WHERE id = $1",
        erasure.id,
        kind,
        count,
    )


async def finish(pool: "Pool[asyncpg.Record]", erasure: Erasure) -> None:
    """Say that nothing is left."""
    async with reaching():
        await pool.execute(
            "UPDATE erasures SET finished_at = clock_timestamp() WHERE id = $1", erasure.id
        )
