"""Handlers as the fleet knows them: what workers have announced, for good."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
from uuid_utils.compat import uuid7

from shared.db import Pool, reaching, transaction
from shared.models import SYSTEM


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerInfo:
    """A handler's announced defaults; see worker.handlers.Handler for what they mean."""

    name: str
    version: str
    description: str
    queue: str
    timeout_ms: int | None
    max_timeout_ms: int | None
    timeout_input: str | None
    max_retries: int | None
    idempotent: bool | dict[str, Any]
    retry_on_timeout: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSkill:
    """The skill that a built-in handler brings along, owned by ``system``."""

    schema: dict[str, Any]
    policy: str
    tags: tuple[str, ...]
    timeout_ms: int | None = None


FIELDS = tuple(HandlerInfo.__dataclass_fields__)

# Only what differs is written: a fleet that restarts must not wake every registry.
ANNOUNCE = f"""
INSERT INTO handlers ({", ".join(FIELDS)}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name) DO UPDATE SET {", ".join(f"{f} = excluded.{f}" for f in FIELDS[1:])}
 WHERE ({", ".join(f"handlers.{f}" for f in FIELDS[1:])})
       IS DISTINCT FROM ({", ".join(f"excluded.{f}" for f in FIELDS[1:])})
RETURNING xmax = 0 AS new, (SELECT version FROM handlers WHERE name = $1) AS before
"""

INSTALL = """
INSERT INTO skills (id, api_key_id, name, version, description, schema, handler, enabled, mode,
                    policy, source_provider, tags)
VALUES ($1, $2, $3, $4, $5, $6, $3, true, 'auto', $7, 'local', $8)
ON CONFLICT (api_key_id, name, version) DO NOTHING
"""


async def announce(
    pool: "Pool[asyncpg.Record]", offered: Sequence[tuple[HandlerInfo, BuiltinSkill | None]]
) -> bool:
    """Write the handlers, and the skills of built-ins seen for the first time; True for a change.

    What an operator changed or deleted stays so: a built-in skill is installed once a version.
    """
    changed = False
    async with transaction(pool) as connection:
        # In one order, so that workers starting together wait for each other, without deadlock.
        for info, skill in sorted(offered, key=lambda pair: pair[0].name):
            row = await connection.fetchrow(ANNOUNCE, *(getattr(info, name) for name in FIELDS))
            if row is None:
                continue
            changed = True
            if skill is not None and (row["new"] or row["before"] != info.version):
                await connection.execute(
                    INSTALL,
                    uuid7(),
                    SYSTEM,
                    info.name,
                    info.version,
                    info.description[:1024],
                    skill.schema,
                    skill.policy,
                    list(skill.tags),
                )
    return changed


async def names(pool: "Pool[asyncpg.Record]") -> list[str]:
    """Return the names of all handlers ever announced, sorted."""
    async with reaching():
        return [row["name"] for row in await pool.fetch("SELECT name FROM handlers ORDER BY name")]


def from_row(row: Any) -> HandlerInfo:
    """Make the value of a row."""
    return HandlerInfo(**{name: row[name] for name in FIELDS})
