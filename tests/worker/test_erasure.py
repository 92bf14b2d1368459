"""An owner is erased: all that is its own goes, and nothing of anybody else's."""

from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from redis.asyncio import Redis

from shared import erasures, keys, pauses
from shared.errors import InvalidInput
from shared.queue import Entry
from shared.redis import rate_key, running_key, share_key
from shared.states import Status
from tests.factories import claim_one, has_status, install, row, serving, submit
from tests.signals import until
from worker import erasure
from worker.room import Room
from worker.workspace import Workspace

OWNER, OTHER = "key-1", "key-2"


async def everything(room: Room, owner: str) -> None:
    """Give an owner one of each."""
    await keys.create(room.pool, owner, ["execute:skills"], key_id=owner)
    await install(room.pool, f"of-{owner}", handler_code="echo", api_key_id=owner)
    await pauses.pause(room.pool, "owner", owner, "test")
    await room.redis.set(rate_key(owner), "1", px=60_000)
    await Workspace(room.settings.data.dir, owner, 1000).write("a/b.txt", b"x")
    for number in range(3):
        execution_id = await submit(room.executions, api_key_id=owner, key=f"k{number}",
                                    key_ttl_ms=60_000, input_digest="d")  # fmt: skip
        await room.queue.put([Entry(execution_id, 0, "direct", "normal", owner=owner)])


async def left(pool: "asyncpg.Pool[asyncpg.Record]", owner: str) -> dict[str, int]:
    found = {
        "executions": "skill_executions WHERE api_key_id = $1",
        "executionKeys": "execution_keys WHERE owner = $1",
        "skills": "skills WHERE api_key_id = $1",
        "pauses": "pauses WHERE name = $1",
        "apiKeys": "api_keys WHERE id = $1",
    }
    return {
        name: await pool.fetchval(f"SELECT count(*) FROM {table}", owner)
        for name, table in found.items()
    }


async def test_all_of_an_owner_goes_and_nothing_of_another(room: Room, redis: Redis) -> None:
    for owner in (OWNER, OTHER):
        await everything(room, owner)
    asked = await erasures.request(room.pool, OWNER, "test")
    assert (await erasures.request(room.pool, OWNER, "test")).id == asked.id
    await erasure.erase(room)
    done = await erasures.get(room.pool, asked.id)
    assert done is not None
    assert done.finished_at is not None
    counts = {"executions": 3, "executionKeys": 3, "skills": 1, "pauses": 1, "apiKeys": 1}
    assert done.removed == {**counts, "files": 1}
    assert await left(room.pool, OWNER) == dict.fromkeys(counts, 0)
    assert await left(room.pool, OTHER) == counts
    assert not Workspace(room.settings.data.dir, OWNER, 1).path.exists()
    assert Path(Workspace(room.settings.data.dir, OTHER, 1).path, "a/b.txt").exists()
    assert not await redis.exists(rate_key(OWNER), running_key(f"owner:{OWNER}"))
    assert await redis.exists(rate_key(OTHER))
    assert await redis.hexists(share_key("direct"), f"1000 {OTHER}")  # type: ignore[misc]
    assert not await redis.hexists(share_key("direct"), f"1000 {OWNER}")  # type: ignore[misc]
    assert await erasures.open_ones(room.pool) == []


async def test_its_key_counts_no_more_from_the_request_on(room: Room) -> None:
    _, secret = await keys.create(room.pool, "k", ["execute:skills"], key_id=OWNER)
    await erasures.request(room.pool, OWNER, "test")
    found = await keys.find(room.pool, secret)
    assert found is not None
    assert not found.usable()


async def test_what_runs_is_cancelled_first_and_its_row_goes_when_it_has_ended(
    room: Room,
) -> None:
    asked = await erasures.request(room.pool, OWNER, "test")
    execution_id = await submit(
        room.executions, api_key_id=OWNER, handler="sleeper", input='{"s": 60}'
    )
    async with serving(room):
        await room.queue.put([Entry(execution_id, 0, "direct", "normal", owner=OWNER)])
        await until(lambda: has_status(room.pool, execution_id, Status.RUNNING), "it runs")

        async def gone() -> bool:
            await erasure.erase(room)
            found = await erasures.get(room.pool, asked.id)
            return bool(found and found.finished_at)

        await until(gone, "it is stopped, and erased", deadline_s=30)
    assert (await left(room.pool, OWNER))["executions"] == 0


@pytest.mark.parametrize("step", ["executions", "executionKeys", "skills", "apiKeys"])
async def test_one_that_was_cut_off_at_any_step_is_gone_on_with(
    room: Room, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await everything(room, OWNER)
    asked = await erasures.request(room.pool, OWNER, "test")
    whole = erasures.remove

    async def cut_off(pool: Any, one: erasures.Erasure, kind: str) -> int:
        if kind == step:
            raise ConnectionError("the worker was killed here")
        return await whole(pool, one, kind)

    monkeypatch.setattr(erasures, "remove", cut_off)
    with pytest.raises(ConnectionError):
        await erasure.erase(room)
    monkeypatch.setattr(erasures, "remove", whole)
    await erasure.erase(room)
    done = await erasures.get(room.pool, asked.id)
    assert done is not None
    assert done.finished_at is not None
    assert (done.removed["executions"], done.removed["files"]) == (3, 1)
    assert set((await left(room.pool, OWNER)).values()) == {0}


async def test_what_another_worker_runs_is_waited_for(room: Room) -> None:
    execution_id = await submit(room.executions, api_key_id=OWNER)
    assert await claim_one(room.executions, execution_id, "worker-elsewhere")
    asked = await erasures.request(room.pool, OWNER, "test")
    await erasure.erase(room)
    found = await erasures.get(room.pool, asked.id)
    assert found is not None
    assert found.finished_at is None
    assert (await row(room.pool, execution_id))["cancel_requested_at"] is not None


@pytest.mark.parametrize("owner", ["system", "anonymous"])
async def test_what_is_everybody_s_stays(room: Room, owner: str) -> None:
    with pytest.raises(InvalidInput, match="it is everybody's"):
        await erasures.request(room.pool, owner, "test")
    assert await erasures.get(room.pool, UUID(int=0)) is None
