"""Whatever somebody publishes, or writes into the registry's keys, the answers stay right."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

import asyncpg
import msgspec
import pytest
from redis.asyncio import Redis

from shared import skills, versions
from shared.errors import SkillNotFound
from shared.models import SkillUpdate
from shared.redis import (
    FINISHED_CHANNEL,
    REGISTRY,
    REGISTRY_CHANNEL,
    REGISTRY_LOCK,
    REGISTRY_TTL_MS,
    Listener,
)
from shared.registry import FOLLOW_S, Registry
from shared.snapshot import decode, encode
from shared.tasks import end
from tests.factories import install, registry_of
from tests.signals import until

BEYOND = 2**62
"""An epoch that no Postgres reaches."""

NOISE = [b"\xff\xfe", b"", b"-1", b"9" * 5000, "٣".encode(), b"1e9", b"x" * 1_000_000]


@pytest.fixture
async def registry(pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str) -> AsyncIterator[Registry]:
    async with registry_of(pool, redis_url) as made:
        yield made


@pytest.mark.parametrize("channel", [REGISTRY_CHANNEL, FINISHED_CHANNEL])
async def test_noise_on_a_channel_leaves_the_subscription_standing(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, channel: str
) -> None:
    heard: list[str] = []
    states: list[bool] = []

    async def hear(_: str, text: str) -> None:
        if text == "raise":
            raise ValueError(text)
        heard.append(text)

    async def tell(hearing: bool) -> None:
        states.append(hearing)

    listener = Listener(redis)
    listener.on(channel, hear)
    listener.on_state(tell)
    await listener.start()
    try:
        for noise in (*NOISE, b"raise", b"after"):
            await redis.publish(channel, noise)

        async def last() -> bool:
            return heard[-1:] == ["after"]

        await until(last, "what follows the noise is heard")
    finally:
        await listener.stop()
    assert states == [True]


async def test_a_registry_hears_the_next_write_through_any_noise(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, registry: Registry
) -> None:
    skill = await install(pool, "s")
    await registry.changed()
    for noise in (*NOISE, str(BEYOND).encode()):
        await redis.publish(REGISTRY_CHANNEL, noise)
        assert (await registry.snapshot()).resolve("s", "k") == skill
    await skills.remove(pool, skill.id, "test")
    await registry.refresh()
    assert not (await registry.snapshot()).versions("s", "k")


async def test_messages_that_promise_ever_newer_epochs_keep_nobody_waiting(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, registry: Registry
) -> None:
    skill = await install(pool, "s")
    await registry.changed()
    published = 0

    async def storm() -> None:
        nonlocal published
        while True:
            published += 1
            await registry._heard(REGISTRY_CHANNEL, str(BEYOND + published))
            await asyncio.sleep(0)

    storming = asyncio.create_task(storm())
    try:
        for _ in range(3):
            async with asyncio.timeout(20):
                assert (await registry.snapshot()).resolve("s", "k") == skill
    finally:
        await end(storming)
    assert published > 3


@pytest.mark.parametrize(
    "data",
    [
        b"no epoch",
        b"9" * 5000 + b" x",
        str(BEYOND).encode() + b" \x93\x80\x90\x90",
        str(BEYOND).encode() + b" " + b"\x91" * 100_000,
        str(BEYOND).encode() + b" \x93\x80\x90" + msgspec.msgpack.encode([{"id": 1}]),
    ],
    ids=["garbage", "long epoch", "far epoch", "deep", "half a skill"],
)
async def test_a_snapshot_that_is_none_of_ours_is_neither_used_nor_kept(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, registry: Registry, data: bytes
) -> None:
    skill = await install(pool, "s")
    await redis.set(REGISTRY, data, px=10 * REGISTRY_TTL_MS)
    assert (await registry.snapshot()).resolve("s", "k") == skill
    kept = await redis.get(REGISTRY)
    assert kept is not None
    assert decode(kept).epoch == await registry.epoch()


async def test_a_snapshot_is_trusted_no_longer_than_ours_live(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, registry: Registry
) -> None:
    await redis.set(REGISTRY, encode(await registry.snapshot()), px=1000 * REGISTRY_TTL_MS)
    registry._snapshot = None
    await registry.snapshot()
    left_s = registry._fresh_until - asyncio.get_running_loop().time()
    assert left_s <= REGISTRY_TTL_MS / 1000


async def test_a_lock_that_would_stay_for_ever_goes(
    pool: "asyncpg.Pool[asyncpg.Record]", redis: Redis, registry: Registry
) -> None:
    skill = await install(pool, "s")
    await redis.set(REGISTRY_LOCK, "somebody")
    began = time.monotonic()
    assert (await registry.snapshot()).resolve("s", "k") == skill
    assert time.monotonic() - began < FOLLOW_S, "nobody waited for the lock's holder"
    assert await redis.exists(REGISTRY_LOCK) == 0


async def test_a_constraint_costs_two_looks_however_many_versions_there_are(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [await install(pool, "s", version=f"1.0.{number}") for number in range(40)]
    for skill in installed[20:]:
        await skills.update(pool, skill.id, SkillUpdate(enabled=False), "test")
    snapshot = await registry.snapshot()
    looks = 0
    look = versions.resolve

    def counted(constraint: str, among: Iterable[str]) -> str | None:
        nonlocal looks
        looks += 1
        return look(constraint, among)

    monkeypatch.setattr(versions, "resolve", counted)
    assert snapshot.resolve("s@>=0.0.1", "k").version == "1.0.19"
    assert looks <= 2


async def test_what_a_key_may_not_use_is_passed_over_and_does_not_exist(
    pool: "asyncpg.Pool[asyncpg.Record]", registry: Registry
) -> None:
    low = await install(pool, "s", version="1.0.0")
    high = await install(pool, "s", version="2.0.0")
    off = await install(pool, "off")
    await skills.update(pool, off.id, SkillUpdate(enabled=False), "test")
    snapshot = await registry.snapshot()
    assert snapshot.resolve("s", "k", lambda skill: skill != high) == low
    assert snapshot.resolve("s@>=1.0.0", "k", lambda skill: skill != high) == low
    for wanted in ("off", off.id, "s", high.id):
        with pytest.raises(SkillNotFound):
            snapshot.resolve(wanted, "k", lambda _: False)
