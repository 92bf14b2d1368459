"""Reading executions: one, many, a page. The owner stands in every WHERE."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from shared.db import ACQUIRE_TIMEOUT_S, Pool, reaching, surveying
from shared.models import Execution, trusted
from shared.states import TERMINAL, Status

COLUMNS = tuple(name for name in Execution.model_fields if name != "pending_reason")
"""The fields of an execution that are columns; why it is pending is worked out when it is read."""

FIELDS = ", ".join(COLUMNS)

GET = f"""
SELECT {FIELDS} FROM skill_executions
 WHERE id = $1 AND ($2::text IS NULL OR api_key_id = $2)
"""

PAGE_BYTES = 8 * 1_048_576
"""Inputs and outputs that a page carries, in bytes of their JSON text; 200 rows may hold 400 MB."""

# Beyond PAGE_BYTES a row comes with marks in their place; ``get`` has it whole.
SHOWN = ", ".join(
    f"CASE WHEN {name} IS NULL OR weight <= {PAGE_BYTES} THEN {name} "
    f"""ELSE '{{{{"truncated": true}}}}'::jsonb END AS {name}"""
    if name in ("input", "output")
    else name
    for name in COLUMNS
)
PAGE = f"""
SELECT {SHOWN} FROM (
    SELECT *, sum(octet_length(input::text) + coalesce(octet_length(output::text), 0))
              OVER (ORDER BY id DESC) AS weight
      FROM (SELECT {FIELDS} FROM skill_executions WHERE {{condition}}
             ORDER BY id DESC LIMIT ${{limit}} OFFSET ${{offset}}) page) weighed
 ORDER BY id DESC
"""

MANY = f"""
SELECT {SHOWN} FROM (
    SELECT *, sum(octet_length(input::text) + coalesce(octet_length(output::text), 0))
              OVER (ORDER BY id) AS weight
      FROM (SELECT {FIELDS} FROM skill_executions WHERE id = ANY($1::uuid[])) asked) weighed
""".replace("{{", "{").replace("}}", "}")

FINISHED = """
SELECT id FROM skill_executions
 WHERE id = ANY($1::uuid[]) AND status IN ('success', 'error', 'timeout')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a list is narrowed to; None does not narrow. ``owner`` None sees every owner's."""

    owner: str | None = None
    skill_id: UUID | None = None
    skill_name: str | None = None
    status: Status | None = None
    session_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition and its arguments, ``$1`` first."""
        conditions = {
            "api_key_id = ${}": self.owner,
            "skill_id = ${}": self.skill_id,
            "skill_name = ${}": self.skill_name,
            # The index has the status of what has ended, and NULL for what has not.
            "ended = ${}": self.status if self.status in TERMINAL else None,
            "ended IS NULL AND status = ${}": None if self.status in TERMINAL else self.status,
            "session_id = ${}": self.session_id,
            # Ids begin with their time: the range lets Postgres skip whole partitions.
            "id >= execution_id_floor(${})": self.since,
            "id < execution_id_floor(${})": self.until,
        }
        used = [(text, value) for text, value in conditions.items() if value is not None]
        texts = [text.format(place) for place, (text, _) in enumerate(used, start=1)]
        return " AND ".join(texts) or "true", [value for _, value in used]


async def get(
    pool: "Pool[asyncpg.Record]", execution_id: UUID, owner: str | None
) -> Execution | None:
    """Return the execution when it exists and is the owner's (any owner's for None)."""
    async with reaching(), pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
        row = await connection.fetchrow(GET, execution_id, owner)
    return None if row is None else from_row(row)


async def page(
    pool: "Pool[asyncpg.Record]",
    narrowed: Filter,
    *,
    limit: int,
    before: UUID | None,
    offset: int = 0,
) -> list[Execution]:
    """Return up to ``limit`` executions, newest first, below the id ``before``.

    Inputs and outputs beyond PAGE_BYTES in all are replaced by ``{"truncated": true}``.
    """
    statement, arguments = paging(narrowed, limit, before, offset)
    async with surveying(pool) as connection:
        return [from_row(row) for row in await connection.fetch(statement, *arguments)]


def paging(narrowed: Filter, limit: int, before: UUID | None, offset: int) -> tuple[str, list[Any]]:
    """Return the statement of a page and its arguments."""
    condition, arguments = narrowed.where()
    if before is not None:
        arguments.append(before)
        condition += f" AND id < ${len(arguments)}"
    arguments += [limit, offset]
    statement = PAGE.format(condition=condition, limit=len(arguments) - 1, offset=len(arguments))
    return statement, arguments


async def many(pool: "Pool[asyncpg.Record]", ids: Sequence[UUID]) -> dict[UUID, Execution]:
    """Return those of the ids that exist, whoever's; what is large is replaced as in a page."""
    async with reaching(), pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
        rows = await connection.fetch(MANY, list(ids))
    return {row["id"]: from_row(row) for row in rows}


async def count(pool: "Pool[asyncpg.Record]", narrowed: Filter) -> int:
    """Count the executions that the filter leaves; as slow as they are many."""
    condition, arguments = narrowed.where()
    async with surveying(pool) as connection:
        statement = f"SELECT count(*) FROM skill_executions WHERE {condition}"
        return int(await connection.fetchval(statement, *arguments))


async def finished(pool: "Pool[asyncpg.Record]", ids: Sequence[UUID]) -> list[UUID]:
    """Return those of the ids whose execution has reached an end."""
    async with reaching(), pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
        return [row["id"] for row in await connection.fetch(FINISHED, list(ids))]


def from_row(row: asyncpg.Record) -> Execution:
    """Make the value of a row; Postgres has checked its types already."""
    values = dict(row)
    values["status"] = Status(values["status"])
    values["pending_reason"] = None
    return trusted(Execution, values)
