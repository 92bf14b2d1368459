"""The commands that look: tables for people, JSON for programs, talk beside the data."""

import json

import pytest

from shared import presence
from shared.executions import Executions
from shared.presence import Presence
from tests.dispatcher.cli.command import skillfleet
from tests.factories import pool_to, submit


@pytest.fixture
async def fleet(database_url: str, redis_url: str) -> dict[str, str]:
    async with pool_to(database_url) as pool:
        for owner in ("key-1", "key-1", "key-2"):
            await submit(Executions(pool), api_key_id=owner)
        worker = Presence(
            id="worker-a", host="h", pid=7, queues=("direct",), handlers=("other",), slots=4,
            running=1, sandbox=None, lease_ms=60_000, rates={"direct": 2.5}, consuming=True,
        )  # fmt: skip
        await presence.beat(pool, worker)
    return {"SKILLS_DATABASE_URL": database_url, "SKILLS_REDIS_URL": redis_url}


def test_workers_queues_and_stats_are_shown(fleet: dict[str, str]) -> None:
    (worker,) = json.loads(skillfleet("workers", "--json", env=fleet).stdout)
    assert (worker["id"], worker["live"], worker["running"]) == ("worker-a", True, 1)
    table = skillfleet("workers", env=fleet).stdout
    assert "worker-a" in table
    assert "1/4" in table
    direct, sandbox = json.loads(skillfleet("queue", "list", "--json", env=fleet).stdout)
    assert (direct["waiting"], direct["rate"], sandbox["waiting"]) == (3, 2.5, 0)
    assert "sandbox" in skillfleet("queue", "list", env=fleet).stdout
    everybody = json.loads(skillfleet("stats", "--json", env=fleet).stdout)
    own = json.loads(skillfleet("stats", "--owner", "key-1", "--json", env=fleet).stdout)
    assert (everybody["pending"], own["pending"]) == (3, 2)
    assert "pending" in skillfleet("stats", env=fleet).stdout


def test_executions_are_listed_and_shown_with_what_they_wait_for(fleet: dict[str, str]) -> None:
    found = json.loads(
        skillfleet("executions", "list", "--owner", "key-1", "--json", env=fleet).stdout
    )
    assert [row["pendingReason"]["code"] for row in found] == ["no_worker"] * 2
    assert "no_worker" in skillfleet("executions", "list", "--status", "pending", env=fleet).stdout
    assert json.loads(
        skillfleet("executions", "list", "--status", "error", "--json", env=fleet).stdout
    ) == []  # fmt: skip
    shown = skillfleet("executions", "show", found[0]["id"], "--json", env=fleet)
    assert json.loads(shown.stdout) == found[0]
    assert "No live worker offers the handler echo" in shown.stderr


def test_a_queue_is_paused_and_goes_on(fleet: dict[str, str]) -> None:
    assert skillfleet("queue", "pause", "direct", env=fleet).returncode == 0
    direct, _ = json.loads(skillfleet("queue", "list", "--json", env=fleet).stdout)
    assert direct["paused"] is True
    assert skillfleet("queue", "resume", "direct", env=fleet).returncode == 0
    again = skillfleet("queue", "resume", "direct", env=fleet)
    assert (again.returncode, "not paused" in again.stderr) == (1, True)
    wrong = skillfleet("queue", "pause", "fast", env=fleet)
    assert (wrong.returncode, "direct or sandbox" in wrong.stderr) == (2, True)


def test_an_owner_is_erased_only_when_that_is_meant(fleet: dict[str, str]) -> None:
    assert skillfleet("owners", "erase", "key-1", env=fleet).returncode == 1, "nobody said yes"
    asked = skillfleet("owners", "erase", "key-1", "--yes", "--json", env=fleet)
    found = json.loads(asked.stdout)
    assert (found["owner"], found["requestedBy"], found["finishedAt"]) == ("key-1", "cli", None)
    again = skillfleet("owners", "erase", "key-1", "--yes", env=fleet)
    assert found["id"] in again.stderr
    assert skillfleet("owners", "erase", "system", "--yes", env=fleet).returncode == 2
