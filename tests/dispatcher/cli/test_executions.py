import json

import pytest
from uuid_utils.compat import uuid7

from shared.executions import Executions
from tests.dispatcher.cli.command import skillfleet
from tests.factories import claim_one, pool_to, submit


@pytest.fixture
def fleet(database_url: str, redis_url: str) -> dict[str, str]:
    return {"SKILLS_DATABASE_URL": database_url, "SKILLS_REDIS_URL": redis_url}


async def test_an_execution_is_cancelled_and_shown(
    database_url: str, fleet: dict[str, str]
) -> None:
    async with pool_to(database_url) as pool:
        executions = Executions(pool, ["echo"])
        waiting, running = await submit(executions), await submit(executions)
        assert await claim_one(executions, running, "worker-a") is not None
    done = skillfleet("executions", "cancel", str(waiting), "--json", env=fleet)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["id"], shown["errorCode"], shown["cancelledBy"]) == (
        str(waiting), "cancelled", "cli",
    )  # fmt: skip
    told = skillfleet("executions", "cancel", str(running), "--wait", "0", env=fleet)
    assert told.returncode == 0, told.stderr
    assert str(running) in told.stdout
    assert "running" in told.stdout
    assert "told to stop" in told.stderr


async def test_what_has_ended_and_what_is_not_there_says_so(
    database_url: str, fleet: dict[str, str]
) -> None:
    async with pool_to(database_url) as pool:
        over = await submit(Executions(pool))
        await pool.execute("UPDATE skill_executions SET status = 'success' WHERE id = $1", over)
    refused = skillfleet("executions", "cancel", str(over), env=fleet)
    assert refused.returncode == 1
    assert "as success" in refused.stderr
    absent = skillfleet("executions", "cancel", str(uuid7()), env=fleet)
    assert absent.returncode == 1
    assert "not found" in absent.stderr
    assert skillfleet("executions", "cancel", "no-id", env=fleet).returncode == 2
