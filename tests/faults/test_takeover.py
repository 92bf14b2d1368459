"""A worker that is killed with its hands full, with the settings as they are delivered."""

import asyncio
from pathlib import Path

from dispatcher import Dispatcher
from tests.conftest import SpawnWorker
from tests.factories import SPECIMENS, install, make_settings
from tests.signals import until

RUNNING = 100
LEASE_S = 10.0
MARGIN_S = 1.0


async def test_a_killed_worker_s_hundred_executions_run_again_or_end_within_its_lease_and_a_second(
    database_url: str, redis_url: str, spawn_worker: SpawnWorker, tmp_path: Path
) -> None:
    variables = {
        "SKILLS_HANDLER_MODULES": SPECIMENS,
        "SKILLS_WORKER_QUEUES": "direct",
        "SKILLS_WORKER_CONCURRENCY": str(RUNNING),
    }
    doomed = await spawn_worker(**variables)
    async with Dispatcher.open(make_settings(database_url, redis_url)) as dispatcher:
        pool = dispatcher.pool
        for skill, handler in (("again", "gate"), ("once", "gate-once")):
            await install(pool, skill, handler_code=handler)
        await dispatcher.registry.changed()
        held = {"log": str(tmp_path / "log"), "open": str(tmp_path / "open")}
        for number in range(RUNNING):
            await dispatcher.submit("again" if number % 2 else "once", held, wait_s=0)
        first = await holder(dispatcher)
        await spawn_worker(**variables)

        began = asyncio.get_running_loop().time()
        doomed.kill()

        async def taken_over() -> bool:
            left = "SELECT count(*) FROM skill_executions WHERE worker_id = $1 AND ended IS NULL"
            again = (
                "SELECT count(*) FROM skill_executions WHERE status = 'running' AND worker_id <> $1"
            )
            still = int(await pool.fetchval(left, first))
            return still == 0 and int(await pool.fetchval(again, first)) == RUNNING / 2

        await until(taken_over, "all run again or have ended", deadline_s=60)
        took_s = asyncio.get_running_loop().time() - began
        assert took_s <= LEASE_S + MARGIN_S, f"it took {took_s:.2f} s"
        ended = await pool.fetch("SELECT error_code FROM skill_executions WHERE ended IS NOT NULL")
        assert [row["error_code"] for row in ended] == ["worker_lost"] * (RUNNING // 2)
        Path(held["open"]).touch()

        async def done() -> bool:
            return not await pool.fetchval(
                "SELECT count(*) FROM skill_executions WHERE ended IS NULL"
            )

        await until(done, "the rest ends", deadline_s=30)
        print(f"{RUNNING} executions of a killed worker taken over within {took_s:.2f} s")


async def holder(dispatcher: Dispatcher) -> str:
    """Return the worker that runs all of them, once it does."""

    async def all_run() -> str | None:
        rows = await dispatcher.pool.fetch(
            "SELECT worker_id, count(*) AS running FROM skill_executions "
            "WHERE status = 'running' GROUP BY worker_id"
        )
        return str(rows[0]["worker_id"]) if rows and rows[0]["running"] == RUNNING else None

    return str(await until(all_run, f"{RUNNING} run"))
