"""A running execution is cancelled: by the message, and by the mark when the message was lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shared import cancels as marks
from shared.executions import CANCELLED
from shared.redis import Listener
from tests.factories import row, run_execution, submit
from tests.signals import until
from worker import cancels
from worker.room import Room


@pytest.fixture
async def listening(room: Room) -> AsyncIterator[Room]:
    listener = Listener(room.redis)
    cancels.listen(room, listener)
    await listener.start()
    await asyncio.wait_for(listener.hearing.wait(), 20)
    yield room
    await listener.stop()


async def begun(room: Room, tmp_path: Path, handler: str) -> "tuple[UUID, asyncio.Task[bool]]":
    log = tmp_path / "log"
    given = json.dumps({"log": str(log), "open": str(tmp_path / "open")})
    execution_id = await submit(room.executions, handler=handler, input=given)
    running = asyncio.create_task(run_execution(room, execution_id))

    async def started() -> bool:
        return log.exists()

    await until(started, "it has started")
    return execution_id, running


async def asked(room: Room, execution_id: UUID) -> None:
    done = await marks.cancel(room.pool, room.redis, execution_id, None, "management")
    assert done is not None
    assert not done.finished


def is_cancelled(found: Any) -> bool:
    return (
        (found["status"], found["error_code"], found["error_message"])
        == ("error", "cancelled", CANCELLED)
        and [entry["outcome"] for entry in found["attempts"]] == ["cancelled"]
        and found["cancelled_by"] == "management"
        and found["finished_at"] is not None
    )


@pytest.mark.parametrize("handler", ["gate", "gate-thread"])
async def test_the_message_ends_a_running_attempt_at_once_and_for_good(
    listening: Room, tmp_path: Path, handler: str
) -> None:
    execution_id, running = await begun(listening, tmp_path, handler)
    await asked(listening, execution_id)
    assert await asyncio.wait_for(running, 20)
    assert is_cancelled(await row(listening.pool, execution_id))
    (tmp_path / "open").touch()  # the thread goes on, and nobody listens to it


async def test_a_lost_message_costs_one_heartbeat(room: Room, tmp_path: Path) -> None:
    execution_id, running = await begun(room, tmp_path, "gate")
    await cancels.check(room)
    await asked(room, execution_id)  # nobody listens
    assert not running.done()
    await cancels.check(room)
    assert await asyncio.wait_for(running, 20)
    assert is_cancelled(await row(room.pool, execution_id))


async def test_what_others_run_and_what_is_no_id_is_passed_over(
    listening: Room, tmp_path: Path
) -> None:
    execution_id, running = await begun(listening, tmp_path, "gate")
    await cancels.heard(listening, "", "no-id")
    await cancels.heard(listening, "", str(UUID(int=7)))
    (tmp_path / "open").touch()
    assert await asyncio.wait_for(running, 20)
    assert (await row(listening.pool, execution_id))["status"] == "success"
