"""The whole path while Redis is away, forgetful or slow."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.states import Status
from tests.conftest import SpawnWorker
from tests.factories import install, make_settings
from tests.faults.proxy import Proxy, proxied
from tests.flows.conftest import QUICK, Desk, desk_on, drained

PATIENCE_S = 30


@pytest.fixture
async def proxy(redis_keeps_nothing: None, redis_url: str) -> AsyncIterator[Proxy]:
    async with proxied(redis_url) as made:
        yield made


@pytest.fixture
async def desk(database_url: str, proxy: Proxy) -> AsyncIterator[Desk]:
    """Give a dispatcher whose Redis is behind the proxy."""
    async with desk_on(make_settings(database_url, proxy.url)) as made:
        await install(made.dispatcher.pool, "echo")
        await made.dispatcher.registry.changed()
        yield made


async def test_what_is_submitted_while_redis_is_away_runs_when_it_is_back(
    desk: Desk, proxy: Proxy, spawn_worker: SpawnWorker
) -> None:
    await spawn_worker(**QUICK, SKILLS_REDIS_URL=proxy.url)
    assert (await desk.send("echo", wait_s=None)).execution.status is Status.SUCCESS
    await proxy.cut()
    async with asyncio.timeout(PATIENCE_S):
        sent = await desk.send("echo", {"n": 1}, wait_s=None)
    assert [warning["code"] for warning in sent.warnings] == ["queue_unavailable"]
    assert sent.execution.status is Status.PENDING
    await install(desk.dispatcher.pool, "fresh", handler_code="echo")
    assert (await desk.send("fresh")).execution.skill_name == "fresh", "the registry is not stale"
    await proxy.mend()
    for execution in await desk.dispatcher.list():
        ended = await desk.reaches(execution.id)
        assert (ended["status"], ended["attempt"]) == ("success", 1)
    assert (await desk.send("echo", wait_s=None)).warnings == ()
    await drained(desk.dispatcher.redis)


async def test_a_redis_that_swallows_everything_delays_an_answer_but_does_not_prevent_it(
    desk: Desk, proxy: Proxy
) -> None:
    proxy.freeze()
    async with asyncio.timeout(PATIENCE_S):
        sent = await desk.send("echo", wait_s=None)
    assert [warning["code"] for warning in sent.warnings] == ["queue_unavailable"]
    assert (await desk.row(sent.execution.id))["status"] == "pending"
    await proxy.cut()


async def test_a_dispatcher_and_a_worker_start_without_redis(
    database_url: str, proxy: Proxy, spawn_worker: SpawnWorker
) -> None:
    await proxy.cut()
    await spawn_worker(**QUICK, SKILLS_REDIS_URL=proxy.url)
    async with desk_on(make_settings(database_url, proxy.url)) as desk:
        await install(desk.dispatcher.pool, "echo")
        sent = await desk.send("echo")
        assert [warning["code"] for warning in sent.warnings] == ["queue_unavailable"]
        await proxy.mend()
        assert (await desk.reaches(sent.execution.id))["status"] == "success"
        await drained(desk.dispatcher.redis)
