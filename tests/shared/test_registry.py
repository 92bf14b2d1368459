import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from structlog.typing import EventDict

from shared import announce, live, skills
from shared.errors import SkillDisabled, SkillNotFound
from shared.models import SkillUpdate
from shared.redis import (
    REGISTRY,
    REGISTRY_CHANNEL,
    REGISTRY_LOCK,
    REGISTRY_TTL_MS,
    Listener,
)
from shared.registry import Registry
from shared.snapshot import decode, encode
from tests.factories import install, registry_of
from tests.faults.proxy import proxied
from tests.signals import until


@pytest.fixture
async def registry(pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str) -> AsyncIterator[Registry]:
    async with registry_of(pool, redis_url) as made:
        yield made


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with capture_logs() as captured:
        yield captured


def loads(logs: list[EventDict]) -> int:
    return sum(entry["event"] == "registry.loaded" for entry in logs)


# --- what it answers ----------------------------------------------------------------------------


async def test_an_owner_s_skill_shadows_the_global_one_of_its_version(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry
) -> None:
    common = await install(pool, "s", version="1.0.0")
    newest = await install(pool, "s", version="1.2.0")
    own = await install(pool, "s", version="1.0.0", api_key_id="k")
    snapshot = await registry.snapshot()
    assert snapshot.resolve("s", "k") == newest
    assert snapshot.resolve("s@1.0.0", "k") == own
    assert snapshot.resolve("s@1.0.0", "other") == common
    assert snapshot.resolve("s@<1.2.0", "k") == own
    assert snapshot.versions("s", "k") == [newest, own]
    assert snapshot.resolve(own.id, "k") == own
    for wanted in (own.id, "s@^2.0.0", "nothing", uuid4()):
        with pytest.raises(SkillNotFound):
            snapshot.resolve(wanted, "other")


async def test_the_highest_version_that_is_on_answers_and_none_is_a_conflict(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry
) -> None:
    low = await install(pool, "s", version="1.0.0")
    high = await install(pool, "s", version="10.0.0")
    middle = await install(pool, "s", version="9.0.0")
    await skills.update(pool, high.id, SkillUpdate(enabled=False), "test")
    await skills.update(pool, middle.id, SkillUpdate(enabled=True, mode="off"), "test")
    assert (await registry.snapshot()).resolve("s", "k").id == low.id
    with pytest.raises(SkillDisabled, match="Skill is disabled: s@>=9"):
        (await registry.snapshot()).resolve("s@>=9.0.0", "k")
    with pytest.raises(SkillDisabled):
        (await registry.snapshot()).resolve(high.id, "k")


async def test_handlers_and_settings_are_in_the_snapshot_without_secrets(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, redis: Redis
) -> None:
    info = announce.HandlerInfo(
        name="h",
        version="1.0.0",
        description="",
        queue="direct",
        timeout_ms=5,
        max_timeout_ms=None,
        timeout_input=None,
        max_retries=None,
        idempotent={"required": ["x"]},
        retry_on_timeout=False,
    )
    await announce.announce(pool, [(info, None)])
    await live.put(pool, {"maxRetries": 7, "skillsmpApiKey": "sk-very-secret"}, "test")
    snapshot = await registry.snapshot()
    assert snapshot.handlers == {"h": info}
    assert snapshot.settings.max_retries == 7
    stored = await redis.get(REGISTRY)
    assert b"very-secret" not in stored
    assert 0 < await redis.pttl(REGISTRY) <= REGISTRY_TTL_MS


async def test_the_form_for_redis_gives_back_the_same_snapshot(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry
) -> None:
    await install(pool, "s", tags=("a", "b"), timeout_ms=10, skill_schema={"input": {}})
    snapshot = await registry.snapshot()
    assert decode(encode(snapshot)) == snapshot


# --- who sees a write, and when -------------------------------------------------------------------


async def test_a_write_in_one_process_is_seen_at_once_in_another(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str, registry: Registry
) -> None:
    async with registry_of(pool, redis_url) as other:
        for n in range(5):
            assert "s" not in (await other.snapshot()).by_name
            skill = await install(pool, "s", version=f"1.0.{n}")
            await registry.changed()
            assert (await registry.snapshot()).resolve("s", "k") == skill

            async def seen(version: str = skill.version) -> bool:
                found = (await other.snapshot()).by_name.get("s")
                return found is not None and found[0].version == version

            await until(seen, "the other sees it", deadline_s=5)
            await skills.remove(pool, skill.id, "test")
            await other.changed()

            async def gone() -> bool:
                return "s" not in (await registry.snapshot()).by_name

            await until(gone, "the removal is seen", deadline_s=5)


async def test_reading_again_costs_neither_postgres_nor_redis(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, redis: Redis
) -> None:
    for _ in range(3):  # the load, the one look at the epoch, and from then on trust
        await registry.snapshot()
    await pool.execute("DROP TABLE registry_epoch CASCADE")
    calls = (await redis.info("commandstats")).get("cmdstat_get", {"calls": 0})["calls"]
    held = [await registry.snapshot() for _ in range(100)]
    assert len({id(snapshot) for snapshot in held}) == 1
    after = (await redis.info("commandstats")).get("cmdstat_get", {"calls": 0})["calls"]
    assert after == calls


async def test_a_deaf_process_asks_postgres_each_time(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str, logs: list[EventDict]
) -> None:
    async with registry_of(pool, redis_url, listen=False) as deaf:
        assert (await deaf.snapshot()).by_name == {}
        await deaf.snapshot()
        assert loads(logs) == 1
        await install(pool, "s")
        assert "s" in (await deaf.snapshot()).by_name


async def test_edits_by_hand_are_seen_after_a_refresh(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str, registry: Registry
) -> None:
    skill = await install(pool, "s")
    async with registry_of(pool, redis_url) as other:
        await other.snapshot()
        await pool.execute("UPDATE skills SET description = 'by hand' WHERE id = $1", skill.id)
        await registry.refresh()

        async def seen() -> bool:
            return (await other.snapshot()).by_id[skill.id].description == "by hand"

        await until(seen, "the edit is seen")


# --- loading once ---------------------------------------------------------------------------------


async def test_many_processes_with_a_cold_cache_query_postgres_once(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str, logs: list[EventDict]
) -> None:
    skill = await install(pool, "s")
    async with (
        registry_of(pool, redis_url) as a,
        registry_of(pool, redis_url) as b,
        registry_of(pool, redis_url) as c,
        registry_of(pool, redis_url, listen=False) as d,
    ):
        found = await asyncio.gather(*(r.snapshot() for r in (a, b, c, d) for _ in range(25)))
    assert all(snapshot.by_id[skill.id] == skill for snapshot in found)
    assert loads(logs) == 1


async def test_a_loader_that_died_is_waited_for_and_then_replaced(
    pool: "asyncpg.Pool[asyncpg.Record]",
    registry: Registry,
    redis: Redis,
    logs: list[EventDict],
) -> None:
    await redis.set(REGISTRY_LOCK, "somebody", px=60_000)
    async with asyncio.timeout(10):
        await registry.snapshot()
    assert loads(logs) == 1
    assert await redis.get(REGISTRY_LOCK) == b"somebody", "another's lock is not ours to free"


class Swallowing(Redis):
    """Redis whose client swallows a cancellation, as asyncio.wait_for may before Python 3.12."""

    async def set(self, *args: Any, **kwargs: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await super().set(*args, **kwargs)


async def test_who_follows_a_loader_stops_although_its_cancellation_got_lost(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, redis_url: str
) -> None:
    await redis.set(REGISTRY_LOCK, "somebody", px=60_000)
    async with Swallowing.from_url(redis_url) as client:
        registry = Registry(pool, client, Listener(client))
        async with asyncio.timeout(20):
            assert (await registry.snapshot()).by_name == {}


async def test_a_failed_load_frees_the_lock(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, redis: Redis
) -> None:
    await pool.execute("ALTER TABLE handlers RENAME TO away")
    with pytest.raises(asyncpg.UndefinedTableError):
        await registry.snapshot()
    assert not await redis.exists(REGISTRY_LOCK)
    await pool.execute("ALTER TABLE away RENAME TO handlers")
    assert (await registry.snapshot()).by_name == {}


# --- lies and losses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "poison",
    [
        b"",
        b"\x80\x04\x95",
        b"garbage",
        b"99999999999999999 garbage",
        b"99999999999999999 " + msgspec.msgpack.encode(({}, [], [{"name": "evil"}])),
        b"99999999999999999 " + msgspec.msgpack.encode(({"skillsEnabled": "maybe"}, [], [])),
        b"x " + msgspec.msgpack.encode(({}, [], [])),
    ],
)
@pytest.mark.parametrize("lasting", [False, True])
async def test_a_poisoned_snapshot_is_refused_and_replaced(
    pool: "asyncpg.Pool[asyncpg.Record]",
    registry: Registry,
    redis: Redis,
    logs: list[EventDict],
    poison: bytes,
    lasting: bool,
) -> None:
    await install(pool, "s")
    await redis.set(REGISTRY, poison, px=None if lasting else 60_000)
    assert "s" in (await registry.snapshot()).by_name
    assert loads(logs) == 1
    assert decode(await redis.get(REGISTRY)) == await registry.snapshot()
    assert await redis.pttl(REGISTRY) > 0


async def test_a_key_of_another_type_only_makes_it_slower(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, redis: Redis
) -> None:
    await redis.hset(REGISTRY, "a", "b")  # type: ignore[misc]  # it is awaitable
    await install(pool, "s")
    assert "s" in (await registry.snapshot()).by_name


async def test_an_epoch_from_the_future_is_corrected_by_postgres(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, redis: Redis
) -> None:
    await registry.snapshot()
    await redis.publish(REGISTRY_CHANNEL, "99999999999999999")
    await redis.publish(REGISTRY_CHANNEL, "not a number")

    async def believed() -> bool:
        return registry._newest == 99999999999999999

    await until(believed, "the lie is heard")
    async with asyncio.timeout(10):
        await registry.snapshot()
    skill = await install(pool, "s")
    await registry.changed()
    assert (await registry.snapshot()).resolve("s", "k") == skill


async def test_a_flushed_redis_can_not_bring_an_old_epoch_back(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, redis: Redis
) -> None:
    before = (await registry.snapshot()).epoch
    await redis.flushdb()
    await install(pool, "s")
    await registry.changed()
    snapshot = await registry.snapshot()
    assert snapshot.epoch > before
    assert "s" in snapshot.by_name


async def test_without_redis_every_write_is_seen_at_once_and_the_return_is_noticed(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str
) -> None:
    async with proxied(redis_url) as proxy, registry_of(pool, proxy.url) as registry:
        for _ in range(3):
            await registry.snapshot()
        await proxy.cut()

        async def deaf() -> bool:
            return not registry._hearing

        await until(deaf, "the loss is noticed")
        for n in range(3):
            await install(pool, f"s{n}")
            await registry.changed()
            assert f"s{n}" in (await registry.snapshot()).by_name
        await install(pool, "unannounced")
        assert "unannounced" in (await registry.snapshot()).by_name
        await proxy.mend()

        async def trusting() -> bool:
            await registry.snapshot()
            return registry._trusting

        await until(trusting, "it hears and trusts again")


async def test_a_redis_that_swallows_everything_does_not_hold_the_registry_up(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str
) -> None:
    await install(pool, "s")
    async with proxied(redis_url) as proxy, registry_of(pool, proxy.url) as registry:
        proxy.freeze()
        async with asyncio.timeout(8):
            assert "s" in (await registry.snapshot()).by_name
        await proxy.cut()
