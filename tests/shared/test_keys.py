from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from shared import keys
from shared.errors import InvalidInput


async def test_a_key_is_found_by_its_secret_which_is_stored_nowhere(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    made, secret = await keys.create(
        pool, "gateway", ["execute:skills", "execute:skills"], allowed_skills=["echo"]
    )
    assert secret.startswith(keys.PREFIX)
    assert len(secret) >= 43
    assert await keys.find(pool, secret) == made
    assert made.scopes == {"execute:skills"}
    assert made.allowed_skills == frozenset({"echo"})
    assert await keys.find(pool, secret + "x") is None
    assert await keys.find(pool, "\ud800") is None
    stored = await pool.fetchrow("SELECT api_keys::text AS row, key_hash FROM api_keys")
    assert stored is not None
    assert secret not in stored["row"]
    assert stored["key_hash"] == keys.hashed(secret)


async def test_two_keys_are_never_alike(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    made = [await keys.create(pool, "same name", ["manage"]) for _ in range(3)]
    assert len({key.id for key, _ in made}) == len({secret for _, secret in made}) == 3
    assert {key.id for key in await keys.list_all(pool)} == {key.id for key, _ in made}


@pytest.mark.parametrize("key_id", ["system", "anonymous", "taken"])
async def test_a_reserved_or_taken_id_is_refused(
    pool: "asyncpg.Pool[asyncpg.Record]", key_id: str
) -> None:
    await keys.create(pool, "first", ["manage"], key_id="taken")
    with pytest.raises(InvalidInput, match=key_id):
        await keys.create(pool, "second", ["manage"], key_id=key_id)


@pytest.mark.parametrize("scopes", [[], ["execute"], ["manage", "root"]])
async def test_an_unknown_scope_is_refused_with_those_there_are(
    pool: "asyncpg.Pool[asyncpg.Record]", scopes: list[str]
) -> None:
    with pytest.raises(InvalidInput, match="execute:skills"):
        await keys.create(pool, "k", scopes)


async def test_a_key_counts_until_it_expires_or_is_revoked(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    now = datetime.now(UTC)
    made, secret = await keys.create(pool, "k", ["manage"], expires_at=now + timedelta(hours=1))
    assert made.usable()
    assert not made.usable(now + timedelta(hours=1))
    assert await keys.revoke(pool, made.id)
    found = await keys.find(pool, secret)
    assert found is not None
    assert not found.usable()
    assert await keys.revoke(pool, made.id)
    again = await keys.find(pool, secret)
    assert again is not None
    assert again.revoked_at == found.revoked_at, "the first revocation is the one"
    assert not await keys.revoke(pool, "nobody")


async def test_use_is_noted_without_waking_every_registry(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    made, secret = await keys.create(pool, "k", ["manage"])
    epoch = await pool.fetchval("SELECT epoch FROM registry_epoch")
    await keys.touch(pool, made.id)
    found = await keys.find(pool, secret)
    assert found is not None
    assert found.last_used_at is not None
    assert await pool.fetchval("SELECT epoch FROM registry_epoch") == epoch
    await keys.revoke(pool, made.id)
    assert await pool.fetchval("SELECT epoch FROM registry_epoch") > epoch
