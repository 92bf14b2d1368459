"""SQL for the table ``skills``: install, update, remove, list."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from shared import audit
from shared.db import Pool, reaching, transaction
from shared.errors import NotFound, SkillExists
from shared.models import SYSTEM, Skill, SkillInstall, SkillUpdate
from shared.versions import key as version_key

ROW = tuple(name for name in Skill.model_fields if name != "skill_schema")
FIELDS = ", ".join((*ROW, "schema"))

INSTALL = """
INSERT INTO skills (id, api_key_id, name, version, description, schema, handler, enabled, mode,
                    policy, source_provider, tags, timeout_ms, max_retries,
                    idempotent, retry_on_timeout, concurrency_limit)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8 <> 'off', $8, $9, 'local', $10, $11, $12, $13, $14, $15)
"""

REPLACE = """
ON CONFLICT (api_key_id, name, version) DO UPDATE
   SET (description, schema, kind, handler, content, enabled, mode, restore_mode, policy,
        source_provider, tags, timeout_ms, max_retries, idempotent, retry_on_timeout,
        concurrency_limit, updated_at)
     = (excluded.description, excluded.schema, excluded.kind, excluded.handler, NULL,
        excluded.enabled, excluded.mode, NULL, excluded.policy, excluded.source_provider,
        excluded.tags, excluded.timeout_ms, excluded.max_retries,
        excluded.idempotent, excluded.retry_on_timeout, excluded.concurrency_limit,
        clock_timestamp())
"""

# `enabled` alone moves the mode along and remembers what it was; `mode` alone moves `enabled`;
# both together are stored as sent. $2 is enabled, $3 is mode, each null when not sent.
SWITCH = """
enabled = coalesce($2, CASE WHEN $3::text IS NULL THEN enabled ELSE $3 <> 'off' END),
mode = coalesce($3, CASE
    WHEN $2::boolean IS NULL THEN mode
    WHEN NOT $2 THEN 'off'
    WHEN mode = 'off' THEN coalesce(restore_mode, 'on')
    ELSE mode END),
restore_mode = CASE
    WHEN $3 = 'off' OR ($2 = false AND $3::text IS NULL)
        THEN coalesce(nullif(mode, 'off'), restore_mode)
    WHEN $3::text IS NULL AND $2::boolean IS NULL THEN restore_mode
    ELSE NULL END
"""


async def install(
    pool: "Pool[asyncpg.Record]", asked: SkillInstall, schema: Mapping[str, Any], actor: str
) -> Skill:
    """Insert the skill for its owner (``system`` when none is named), its schema checked already.

    Raises SkillExists when that owner has this name and version, unless ``replace`` is set.
    """
    owner = asked.api_key_id or SYSTEM
    statement = f"{INSTALL} {REPLACE if asked.replace else ''} RETURNING {FIELDS}"
    try:
        async with transaction(pool) as connection:
            row = await connection.fetchrow(
                statement,
                uuid7(),
                owner,
                asked.name,
                asked.version,
                asked.description,
                dict(schema),
                asked.handler_code,
                asked.mode,
                asked.policy,
                list(asked.tags),
                asked.timeout_ms,
                asked.max_retries,
                asked.idempotent,
                asked.retry_on_timeout,
                asked.concurrency_limit,
            )
            await audit.record(
                connection, actor, "skill.install", row["id"], {"replace": asked.replace}
            )
    except asyncpg.UniqueViolationError:
        raise SkillExists(asked.name, asked.version) from None
    return from_row(row)


async def update(
    pool: "Pool[asyncpg.Record]", skill_id: UUID, changes: SkillUpdate, actor: str
) -> Skill:
    """Change what was sent; raise NotFound for an unknown id."""
    sent = changes.model_dump(exclude_unset=True)
    plain = {name: value for name, value in sent.items() if name not in ("enabled", "mode")}
    columns = "".join(f", {name} = ${place}" for place, name in enumerate(plain, start=4))
    values = [list(value) if isinstance(value, tuple) else value for value in plain.values()]
    async with transaction(pool) as connection:
        row = await connection.fetchrow(
            f"UPDATE skills SET {SWITCH}, updated_at = clock_timestamp(){columns} "
            f"WHERE id = $1 RETURNING {FIELDS}",
            skill_id,
            sent.get("enabled"),
            sent.get("mode"),
            *values,
        )
        if row is None:
            raise NotFound(f"Skill not found: {skill_id}")
        await audit.record(
            connection,
            actor,
            "skill.update",
            skill_id,
            changes.model_dump(mode="json", exclude_unset=True),
        )
    return from_row(row)


async def remove(pool: "Pool[asyncpg.Record]", skill_id: UUID, actor: str) -> None:
    """Delete the skill; its executions stay. Raises NotFound for an unknown id."""
    async with transaction(pool) as connection:
        row = await connection.fetchrow(
            "DELETE FROM skills WHERE id = $1 RETURNING name, version", skill_id
        )
        if row is None:
            raise NotFound(f"Skill not found: {skill_id}")
        await audit.record(connection, actor, "skill.remove", skill_id, dict(row))


async def get(pool: "Pool[asyncpg.Record]", skill_id: UUID) -> Skill:
    """Return the skill of that id; raise NotFound when there is none."""
    async with reaching():
        row = await pool.fetchrow(f"SELECT {FIELDS} FROM skills WHERE id = $1", skill_id)
    if row is None:
        raise NotFound(f"Skill not found: {skill_id}")
    return from_row(row)


async def page(
    pool: "Pool[asyncpg.Record]",
    *,
    q: str | None,
    mode: str | None,
    source: str | None,
    limit: int,
    after: tuple[str, str, UUID] | None = None,
    offset: int = 0,
) -> list[Skill]:
    """Return skills by name, owner and id; ``q`` is looked for in names, descriptions and tags."""
    async with reaching():
        rows = await pool.fetch(
            f"SELECT {FIELDS} FROM skills WHERE {MATCHES} "
            "AND ($4::text IS NULL OR (name, api_key_id, id) > ($4, $5, $6)) "
            "ORDER BY name, api_key_id, id LIMIT $7 OFFSET $8",
            pattern(q),
            mode,
            source,
            *(after or (None, None, None)),
            limit,
            offset,
        )
    return [from_row(row) for row in rows]


async def count(
    pool: "Pool[asyncpg.Record]", *, q: str | None, mode: str | None, source: str | None
) -> int:
    """Count the skills that ``page`` would go through."""
    async with reaching():
        return int(
            await pool.fetchval(
                f"SELECT count(*) FROM skills WHERE {MATCHES}", pattern(q), mode, source
            )
        )


MATCHES = """
($1::text IS NULL OR name ILIKE $1 OR description ILIKE $1 OR array_to_string(tags, ' ') ILIKE $1)
AND ($2::text IS NULL OR mode = $2) AND ($3::text IS NULL OR source_provider = $3)
"""


def pattern(q: str | None) -> str | None:
    """Return the LIKE pattern of a search text, its own wildcards taken literally."""
    if not q:
        return None
    escaped = q.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def newest_first(found: list[Skill]) -> list[Skill]:
    """Sort by version, highest first."""
    return sorted(found, key=lambda skill: version_key(skill.version), reverse=True)


def from_row(row: Any) -> Skill:
    """Make the value of a row; Postgres has checked its types already."""
    fields = {name: row[name] for name in ROW}
    return Skill.model_construct(
        **{**fields, "tags": tuple(row["tags"]), "skill_schema": row["schema"]}
    )
