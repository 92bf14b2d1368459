"""What is paused: a queue, a skill or an owner. Its executions wait; what runs goes on.

The claim and the sweep leave their rows alone; a worker drops their entries, and the sweep rings
for them again afterwards.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import asyncpg

from shared import audit
from shared.db import Pool, reaching, transaction
from shared.errors import InvalidInput
from shared.models import QUEUES

Kind = Literal["queue", "skill", "owner"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Pause = tuple[str, str]
"""A kind and a name; a skill is paused by its name, in all its versions."""


def unpaused(first: int) -> str:
    """Return the condition of rows that may go on; its arguments, from ``first``, are ``names``."""
    columns = ("queue", "skill_name", "api_key_id")
    return " AND ".join(f"{name} <> ALL(${first + at}::text[])" for at, name in enumerate(columns))


def names(pauses: Iterable[Pause]) -> tuple[list[str], list[str], list[str]]:
    """Return the paused queues, skills and owners."""
    found = list(pauses)
    queues, skills, owners = ([name for was, name in found if was == kind] for kind in KINDS)
    return queues, skills, owners


@dataclass(frozen=True, slots=True)
class Paused:
    """One pause, since when and by whom."""

    kind: Kind
    name: str
    paused_at: datetime
    paused_by: str


async def pause(pool: "Pool[asyncpg.Record]", kind: Kind, name: str, actor: str) -> bool:
    """Pause it; False when it was paused already. Tell the registry that something changed.

    Raises InvalidInput for a queue that there is not.
    """
    if kind == "queue" and name not in QUEUES:
        violation = {"pointer": "/name", "message": f"is none of {', '.join(QUEUES)}"}
        raise InvalidInput(f"There is no queue {name}. Use {' or '.join(QUEUES)}", [violation])
    async with transaction(pool) as connection:
        done = await connection.fetchval(
            "INSERT INTO pauses (kind, name, paused_by) VALUES ($1, $2, $3) "
            "ON CONFLICT DO NOTHING RETURNING true",
            kind,
            name,
            actor,
        )
        if done:
            await audit.record(connection, actor, "pause", f"{kind}:{name}", {})
    return bool(done)


async def resume(pool: "Pool[asyncpg.Record]", kind: Kind, name: str, actor: str) -> bool:
    """Let it go on; False when it was not paused. Tell the registry that something changed."""
    async with transaction(pool) as connection:
        done = await connection.fetchval(
            "DELETE FROM pauses WHERE kind = $1 AND name = $2 RETURNING true", kind, name
        )
        if done:
            await audit.record(connection, actor, "resume", f"{kind}:{name}", {})
    return bool(done)


async def listed(pool: "Pool[asyncpg.Record]") -> list[Paused]:
    """Return what is paused, by kind and name."""
    async with reaching():
        rows = await pool.fetch(
            'SELECT kind, name, paused_at, paused_by FROM pauses ORDER BY kind, name COLLATE "C"'
        )
    return [Paused(**row) for row in rows]
