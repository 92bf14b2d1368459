import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from shared import events
from shared.events import Waiters, publish_finished
from shared.executions import Ending, Executions
from shared.redis import FINISHED_CHANNEL, Listener
from shared.states import Status
from tests.factories import claim_one, redis_to, submit
from tests.faults.proxy import proxied
from tests.signals import until

SOON_S = 10.0


@pytest.fixture
async def waiters(pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str) -> AsyncIterator[Waiters]:
    async with redis_to(redis_url) as client:
        listener = Listener(client)
        made = Waiters(pool, listener)
        await listener.start()
        await made.start()
        yield made
        await made.stop()
        await listener.stop()


async def ended_quietly(pool: "asyncpg.Pool[asyncpg.Record]") -> UUID:
    """End an execution without telling anybody."""
    executions = Executions(pool, ["echo"])
    execution_id = await submit(executions)
    assert await claim_one(executions, execution_id, "w")
    await executions.finish(
        Ending(id=execution_id, attempt=1, worker_id="w", status=Status.SUCCESS)
    )
    return execution_id


async def test_who_waits_for_an_execution_is_woken_and_others_are_not(
    waiters: Waiters, redis_url: str
) -> None:
    mine, other = uuid7(), uuid7()
    async with redis_to(redis_url) as redis:
        with (
            waiters.expecting(mine) as first,
            waiters.expecting(mine) as second,
            waiters.expecting(other) as third,
        ):
            await redis.publish(FINISHED_CHANNEL, "not an id")
            await publish_finished(redis, [uuid7(), mine])
            async with asyncio.timeout(SOON_S):
                await first.wait()
                await second.wait()
            assert not third.is_set()
    assert waiters._waiting == {}


async def test_a_missed_event_is_made_good_by_the_safety_read(
    waiters: Waiters, pool: "asyncpg.Pool[asyncpg.Record]"
) -> None:
    with waiters.expecting(await ended_quietly(pool)) as event:
        await waiters.check()
        assert event.is_set()


async def test_the_safety_read_comes_by_itself(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SAFETY_READ_S", 0.02)
    async with redis_to(redis_url) as client:
        waiters = Waiters(pool, Listener(client))
        await waiters.start()
        with waiters.expecting(await ended_quietly(pool)) as event:
            async with asyncio.timeout(SOON_S):
                await event.wait()
        await waiters.stop()


async def test_what_ended_while_redis_was_away_is_read_when_it_comes_back(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str
) -> None:
    async with proxied(redis_url) as proxy, redis_to(proxy.url) as client:
        listener = Listener(client)
        waiters = Waiters(pool, listener)  # never started: no safety read helps here
        await listener.start()
        await proxy.cut()

        async def deaf() -> bool:
            return not listener.hearing.is_set()

        await until(deaf, "the loss is noticed")
        with waiters.expecting(await ended_quietly(pool)) as event:
            await publish_finished(client, [uuid7()])  # into the void: logged, not raised
            await proxy.mend()
            async with asyncio.timeout(SOON_S):
                await event.wait()
        await listener.stop()


async def test_stopping_wakes_everybody(waiters: Waiters) -> None:
    with waiters.expecting(uuid7()) as event:
        await waiters.stop()
        assert event.is_set()
