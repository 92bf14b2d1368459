"""API keys: 256 random bits that are shown once and stored as their SHA-256."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

import asyncpg
from uuid_utils.compat import uuid7

from shared import audit
from shared.db import Pool, reaching, transaction
from shared.errors import InvalidInput, NotFound
from shared.models import Scope

SCOPES: tuple[str, ...] = get_args(Scope)

PREFIX = "sfk_"
"""Marks a skillfleet key, so that secret scanners and people know one when they see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key's row, without the key. ``id`` is the owner of what is done with it.

    ``concurrency_limit`` is how many of its executions run at once, ``rate_limit`` how many it may
    submit in a minute, ``weight`` its share of the turns where the queue is long.
    """

    id: str
    name: str
    scopes: frozenset[str]
    allowed_skills: frozenset[str] | None
    concurrency_limit: int | None
    rate_limit: int | None
    weight: float
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def usable(self, now: datetime | None = None) -> bool:
        """Tell whether the key counts: neither revoked nor past its time."""
        now = now or datetime.now(UTC)
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


FIELDS = ", ".join(Key.__dataclass_fields__)


class Share(NamedTuple):
    """What an owner may have of the fleet; None is no limit."""

    owner: str
    concurrency_limit: int | None
    rate_limit: int | None
    weight: float


SHARES = """
SELECT id, concurrency_limit, rate_limit, weight FROM api_keys
 WHERE concurrency_limit IS NOT NULL OR rate_limit IS NOT NULL OR weight <> 1
"""

CHANGEABLE = ("name", "concurrency_limit", "rate_limit", "weight")


def hashed(secret: str) -> bytes:
    """Return what the database stores for a key: the SHA-256 of its UTF-8 form, 32 bytes."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def create(
    pool: "Pool[asyncpg.Record]",
    name: str,
    scopes: Sequence[str],
    *,
    key_id: str | None = None,
    secret: str | None = None,
    allowed_skills: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    concurrency_limit: int | None = None,
    rate_limit: int | None = None,
    weight: float = 1.0,
) -> tuple[Key, str]:
    """Make a key and return its row and the secret, which can't be had again.

    Raises InvalidInput for an unknown scope or an id that is taken or reserved.
    """
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise InvalidInput(
            f"Unknown scopes: {', '.join(unknown) or 'none given'}. Use some of {', '.join(SCOPES)}"
        )
    secret = secret or PREFIX + secrets.token_urlsafe(32)
    try:
        async with transaction(pool) as connection:
            row = await connection.fetchrow(
                "INSERT INTO api_keys (id, name, key_hash, scopes, allowed_skills, expires_at, "
                "concurrency_limit, rate_limit, weight) "
                f"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING {FIELDS}",
                key_id or f"key_{uuid7().hex}",
                name,
                hashed(secret),
                list(dict.fromkeys(scopes)),
                None if allowed_skills is None else list(allowed_skills),
                expires_at,
                concurrency_limit,
                rate_limit,
                weight,
            )
    except (asyncpg.UniqueViolationError, asyncpg.CheckViolationError):
        raise InvalidInput(f"The key id {key_id} is taken or reserved; choose another") from None
    return from_row(row), secret


async def change(
    pool: "Pool[asyncpg.Record]", key_id: str, changes: Mapping[str, Any], actor: str
) -> Key:
    """Change what is named of CHANGEABLE; raise NotFound for an unknown id."""
    columns = ", ".join(f"{name} = ${place}" for place, name in enumerate(changes, start=2))
    async with transaction(pool) as connection:
        row = await connection.fetchrow(
            f"UPDATE api_keys SET {columns} WHERE id = $1 RETURNING {FIELDS}",
            key_id,
            *changes.values(),
        )
        if row is None:
            raise NotFound(f"API key not found: {key_id}")
        await audit.record(connection, actor, "key.change", key_id, dict(changes))
    return from_row(row)


async def shares(connection: Any) -> list[Share]:
    """Return what owners may have, of those for whom anything is said."""
    return [Share(*row) for row in await connection.fetch(SHARES)]


async def find(pool: "Pool[asyncpg.Record]", secret: str) -> Key | None:
    """Return the key of that secret, usable or not."""
    return await by_hash(pool, hashed(secret))


async def by_hash(pool: "Pool[asyncpg.Record]", key_hash: bytes) -> Key | None:
    """Return the key whose secret has that hash; the index does the comparing."""
    async with reaching():
        row = await pool.fetchrow(f"SELECT {FIELDS} FROM api_keys WHERE key_hash = $1", key_hash)
    return None if row is None else from_row(row)


async def list_all(pool: "Pool[asyncpg.Record]") -> list[Key]:
    """Return every key, newest first."""
    async with reaching():
        return [
            from_row(row)
            for row in await pool.fetch(f"SELECT {FIELDS} FROM api_keys ORDER BY created_at DESC")
        ]


async def revoke(pool: "Pool[asyncpg.Record]", key_id: str) -> bool:
    """Revoke a key for ever; False when there is none of that id."""
    async with transaction(pool) as connection:
        return bool(
            await connection.fetchval(
                "UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) "
                "WHERE id = $1 RETURNING true",
                key_id,
            )
        )


async def touch(pool: "Pool[asyncpg.Record]", key_id: str) -> None:
    """Note that a key was used just now."""
    async with reaching():
        await pool.execute(
            "UPDATE api_keys SET last_used_at = clock_timestamp() WHERE id = $1", key_id
        )


def from_row(row: Any) -> Key:
    """Make the value of a row."""
    allowed = row["allowed_skills"]
    return Key(
        **{
            **row,
            "scopes": frozenset(row["scopes"]),
            "allowed_skills": None if allowed is None else frozenset(allowed),
        }
    )
