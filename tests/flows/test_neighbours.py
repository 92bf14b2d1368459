"""Rooms of the version before beside those of this one, as during a rollout."""

import asyncio
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest

from shared.redis import queue_key
from shared.states import Status
from tests.conftest import SpawnDispatcher, SpawnWorker
from tests.factories import install
from tests.flows.conftest import Desk
from tests.requires import missing
from tests.services import MANAGEMENT_TOKEN
from tests.signals import until

BEFORE = "5486c6a0cff8641ed511ea532d0018215feb2763"
"""The last commit before the queue's own loop and its second migration."""

ROOT = Path(__file__).parents[2]
VARIABLES = {"SKILLS_HANDLER_MODULES": "worker.samples", "SKILLS_WORKER_QUEUES": "direct"}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables with which a room is started from the code of then."""
    folder = tmp_path_factory.mktemp("before")
    archive = folder / "code.tar"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), BEFORE],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        missing("history", f"the commit {BEFORE} is not here: {done.stderr.strip()}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


async def ready(desk: Desk) -> None:
    await install(desk.dispatcher.pool, "said", handler_code="echo-handler", version="2.0.0")
    await desk.dispatcher.registry.changed()


async def workers_of(desk: Desk, calls: int) -> Counter[str]:
    """Submit calls at once; return how many each worker ended, all in their first attempt."""
    done = await asyncio.gather(
        *(desk.dispatcher.submit("said", {"n": n}, wait_s=60) for n in range(calls))
    )
    assert {(e.status, e.attempt) for e in done} == {(Status.SUCCESS, 1)}
    assert [e.output for e in done] == [{"n": n} for n in range(calls)]

    # An older worker says first that it is done, and clears its entry away afterwards.
    async def cleared() -> bool:
        return not await desk.dispatcher.redis.exists(queue_key("direct"))

    await until(cleared, "the queue is empty")
    return Counter(str(e.worker_id) for e in done)


async def test_an_older_worker_serves_a_newer_dispatcher_and_schema(
    desk: Desk, spawn_worker: SpawnWorker, before: dict[str, str]
) -> None:
    await spawn_worker(**VARIABLES, **before)
    lease_ms = await desk.dispatcher.pool.fetchval("SELECT lease_ms FROM workers")
    assert lease_ms == 12_000, "it is the older one, which says nothing of its lease"
    await ready(desk)
    assert len(await workers_of(desk, 20)) == 1


async def test_older_and_newer_workers_share_one_queue(
    desk: Desk, spawn_worker: SpawnWorker, before: dict[str, str]
) -> None:
    await spawn_worker(**VARIABLES, **before)
    await spawn_worker(**VARIABLES)
    await ready(desk)
    total: Counter[str] = Counter()
    for _ in range(10):
        total += await workers_of(desk, 100)
    assert total.total() == 1000


async def test_a_newer_worker_serves_an_older_dispatcher(
    desk: Desk,
    spawn_worker: SpawnWorker,
    spawn_dispatcher: SpawnDispatcher,
    before: dict[str, str],
) -> None:
    await spawn_worker(**VARIABLES)
    await ready(desk)
    older = await spawn_dispatcher(**before)
    async with httpx.AsyncClient(base_url=older.url, trust_env=False, timeout=60) as http:
        for number in range(10):
            answer = await http.post(
                "/api/skills/executions",
                headers={"Authorization": f"Bearer {MANAGEMENT_TOKEN}"},
                json={"skillName": "said", "input": {"n": number}},
            )
            assert answer.status_code == httpx.codes.OK, answer.text
            assert answer.json()["execution"]["output"] == {"n": number}
