import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from shared import redis as ours
from shared.errors import ConfigurationError
from shared.redis import Listener, connect
from tests.factories import make_settings, redis_to
from tests.faults.proxy import Proxy, proxied
from tests.signals import until


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    async with proxied(redis_url) as made:
        yield made


@pytest.fixture
async def speaker(redis_url: str) -> AsyncIterator[Redis]:
    async with redis_to(redis_url) as client:
        yield client


class Ear:
    """A listener on a channel, and all that it was told."""

    def __init__(self, redis: Redis) -> None:
        self.heard: list[str] = []
        self.states: list[bool] = []
        self.listener = Listener(redis)
        self.listener.on("test:a", self._message)
        self.listener.on("test:b", self._message)
        self.listener.on_state(self._state)

    async def _message(self, channel: str, text: str) -> None:
        if text == "bad":
            raise ValueError(text)
        self.heard.append(f"{channel}={text}")

    async def _state(self, hearing: bool) -> None:
        self.states.append(hearing)

    async def hears(self, speaker: Redis, text: str) -> None:
        """Say it until it is heard: a subscription that comes back stands a moment later."""

        async def said() -> bool:
            await speaker.publish("test:a", text)
            await asyncio.sleep(0)
            return f"test:a={text}" in self.heard

        await until(said, f"{text} is heard")


@pytest.fixture
async def ear(proxy: Proxy) -> AsyncIterator[Ear]:
    async with redis_to(proxy.url) as client:
        made = Ear(client)
        await made.listener.start()
        yield made
        await made.listener.stop()


def test_a_wrong_url_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationError, match="SKILLS_REDIS_URL"):
        connect(make_settings(redis_url="nonsense://x"))


async def test_what_is_published_after_start_is_heard(ear: Ear, speaker: Redis) -> None:
    assert ear.states == [True]
    await speaker.publish("test:a", "1")
    await speaker.publish("test:b", "2")

    async def both() -> bool:
        return ear.heard == ["test:a=1", "test:b=2"]

    await until(both, "both are heard")


async def test_a_listener_whose_redis_went_says_so_and_comes_back(
    ear: Ear, speaker: Redis, proxy: Proxy
) -> None:
    await proxy.cut()

    async def deaf() -> bool:
        return ear.states == [True, False] and not ear.listener.hearing.is_set()

    await until(deaf, "it knows that it is deaf")
    await proxy.mend()
    await ear.hears(speaker, "again")
    assert ear.states == [True, False, True]


async def test_a_subscription_that_silently_died_is_noticed(
    ear: Ear, speaker: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "QUIET_S", 0.2)
    proxy.freeze()

    async def deaf() -> bool:
        return False in ear.states

    await until(deaf, "the silence is noticed")
    await proxy.cut()
    await proxy.mend()
    await ear.hears(speaker, "again")


async def test_a_quiet_subscription_is_not_taken_for_dead(
    ear: Ear, speaker: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "QUIET_S", 0.02)
    pinged = (await speaker.info("commandstats")).get("cmdstat_ping", {"calls": 0})["calls"]

    async def many_pings() -> bool:
        stats = await speaker.info("commandstats")
        return bool(stats.get("cmdstat_ping", {"calls": 0})["calls"] > pinged + 20)

    await until(many_pings, "it has pinged twenty times")
    assert ear.states == [True]


async def test_a_message_that_breaks_its_receiver_does_not_end_the_listening(
    ear: Ear, speaker: Redis
) -> None:
    await speaker.publish("test:a", "bad")
    await ear.hears(speaker, "good")


async def test_starting_without_a_redis_does_not_wait_for_ever(proxy: Proxy) -> None:
    await proxy.cut()
    async with redis_to(proxy.url) as client:
        made = Ear(client)
        async with asyncio.timeout(10):
            await made.listener.start()
        assert made.states == []
        await made.listener.stop()
        with pytest.raises(RedisError):
            await client.ping()


async def test_a_redis_that_is_away_is_named_in_the_log_without_the_password() -> None:
    client = connect(make_settings(redis_url="redis://me:hush-hush@127.0.0.1:1/0"))
    listener = Listener(client)
    listener.on("test:a", Ear(client)._message)
    with capture_logs() as captured:
        await listener.start()
        await listener.stop()
    await client.aclose()
    lost = next(line for line in captured if line["event"] == "redis.listener.lost")
    assert "127.0.0.1:1" in lost["error"]
    assert "SKILLS_REDIS_URL" in lost["hint"]
    assert "hush-hush" not in str(captured)
