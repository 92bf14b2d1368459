import asyncpg
from redis.asyncio import Redis

from tests.services import Databases, keys_without_ttl, on_database


async def test_each_test_has_a_migrated_database_of_its_own(
    databases: Databases, database_url: str
) -> None:
    other = await databases.create()
    try:
        connection = await asyncpg.connect(database_url)
        await connection.execute("INSERT INTO settings VALUES ('x', '1', now(), 'test')")
        await connection.close()
        connection = await asyncpg.connect(other)
        assert await connection.fetchval("SELECT count(*) FROM settings") == 0
        await connection.close()
    finally:
        await databases.drop(other)


async def test_a_key_that_would_stay_for_ever_is_found(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as client:
        assert await keys_without_ttl(client) == []
        await client.set("kept", "1")
        await client.set("gone soon", "1", ex=60)
        assert await keys_without_ttl(client) == ["kept"]


def test_a_url_is_turned_to_another_database_on_the_same_server() -> None:
    assert on_database("postgresql://me@/a?host=/run/x", "b") == "postgresql://me@/b?host=/run/x"
    assert on_database("postgresql://me:pw@h:5/a", "b") == "postgresql://me:pw@h:5/b"
