import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shared.db import LOST
from shared.errors import Unavailable
from shared.states import Status
from tests.factories import ran, room_in, row, run_execution, submit
from tests.faults.proxy import proxied
from tests.signals import until
from worker.room import Room


async def test_an_ending_waits_for_a_postgres_that_went_away(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, refusals = room.executions._finish, 3

    async def away_at_first(rows: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise Unavailable("away") from ConnectionResetError()
        return await finish(rows)

    monkeypatch.setattr(room.executions._finishes, "_flush", away_at_first)
    done = await ran(room, "echo", input='{"kept": true}')
    assert (done["status"], done["output"], refusals) == ("success", {"kept": True}, 0)


async def test_a_postgres_that_drops_its_connections_costs_no_execution(
    room: Room, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "open"
    given = json.dumps({"log": str(log), "open": str(gate)})
    execution_id = await submit(room.executions, handler="gate-once", input=given)
    running = asyncio.create_task(run_execution(room, execution_id))

    async def started() -> bool:
        return log.exists()

    await until(started, "it has started")
    connection = await asyncpg.connect(room.settings.database.url)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()
    gate.touch()
    await running

    async def read() -> Any:
        try:
            return await row(room.pool, execution_id)
        except LOST:
            return None

    assert (await until(read, "the row is read"))["status"] == "success"


async def test_without_redis_the_row_is_ended_all_the_same(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with (
        proxied(redis_url) as proxy,
        room_in(database_url, proxy.url, tmp_path) as room,
    ):
        await proxy.cut()
        assert (await ran(room, "echo"))["status"] == Status.SUCCESS
        assert (await ran(room, "flaky", input='{"failures": 1}'))["status"] == Status.PENDING


async def test_a_retry_that_this_worker_takes_up_at_once_stays_held(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "open"
    given = json.dumps({"log": str(log), "open": str(gate)})
    async with (
        proxied(redis_url) as proxy,
        room_in(database_url, proxy.url, tmp_path) as room,
    ):
        await room.registry.snapshot()
        execution_id = await submit(room.executions, handler="flaky-gate", input=given)
        proxy.freeze()  # the first attempt stays on its way to the queue
        first = asyncio.create_task(run_execution(room, execution_id))

        async def given_back() -> bool:
            found = await row(room.pool, execution_id)
            pending = (found["status"], found["attempt"]) == (Status.PENDING, 1)
            return pending and execution_id not in room.held

        await until(given_back, "the first attempt is given back")
        second = asyncio.create_task(run_execution(room, execution_id))

        async def started() -> bool:
            return log.exists()

        await until(started, "the second attempt has started")
        await proxy.mend()
        await first
        assert room.held == {execution_id}, "what is not held is taken for lost"
        gate.touch()
        await second
        assert room.held == set()
        assert (await row(room.pool, execution_id))["status"] == Status.SUCCESS
