"""The REST interface as processes serve it."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from dispatcher import Client, SyncClient
from shared.errors import IdentityConflict, SkillDisabled
from shared.states import Status
from tests.conftest import SpawnDispatcher, SpawnWorker
from tests.services import MANAGEMENT_TOKEN, free_port
from tests.signals import until

HEADERS = {"Authorization": f"Bearer {MANAGEMENT_TOKEN}"}


def api(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers=HEADERS, trust_env=False, timeout=60)


async def test_an_execution_runs_end_to_end_and_its_record_tells_the_story(
    spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker
) -> None:
    room = await spawn_dispatcher()
    await spawn_worker(SKILLS_WORKER_QUEUES="direct")
    async with Client(room.url, MANAGEMENT_TOKEN) as client:
        await client.install(name="echo", handler_code="echo-handler")
        done = await client.submit("echo", {"text": "hi"}, idempotency_key="k-1")
        assert (done.status, done.output, done.attempt) == (Status.SUCCESS, {"text": "hi"}, 1)
        assert done.started_at is not None
        assert done.finished_at is not None
        assert done.created_at <= done.started_at <= done.finished_at
        assert done.worker_id
        again = await client.submit("echo", {"text": "hi"}, idempotency_key="k-1")
        assert again == done
        with pytest.raises(IdentityConflict):
            await client.submit("echo", {"text": "other"}, idempotency_key="k-1")


async def test_a_replay_joins_the_execution_that_still_runs(
    spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker
) -> None:
    room = await spawn_dispatcher()
    await spawn_worker(SKILLS_WORKER_QUEUES="direct")
    body = {"skillName": "sleep", "input": {"ms": 1500}}
    keyed = {"Idempotency-Key": "k"}
    async with api(room.url) as http:
        await http.post("/api/skills/install", json={"name": "sleep", "handler": "sleep-handler"})
        first, second = await asyncio.gather(
            *(http.post("/api/skills/executions", json=body, headers=keyed) for _ in range(2))
        )
        assert first.json() == second.json()
        assert first.json()["execution"]["status"] == "success"
        replayed = [answer.headers.get("Idempotent-Replayed") for answer in (first, second)]
        assert sorted(map(str, replayed)) == ["None", "true"]


async def test_the_sync_client_does_what_the_async_one_does(
    spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker
) -> None:
    room = await spawn_dispatcher()
    await spawn_worker(SKILLS_WORKER_QUEUES="direct")
    await asyncio.to_thread(synchronous, room.url)


def synchronous(url: str) -> None:
    with SyncClient(url, MANAGEMENT_TOKEN) as client:
        skill = client.install(name="echo", handler_code="echo-handler", tags=["x"])
        done = client.submit("echo", {"n": 1})
        assert (done.status, done.output) == (Status.SUCCESS, {"n": 1})
        later = client.submit(skill_id=skill.id, input={"n": 2}, wait_s=0)
        assert client.wait(later.id, 30).output == {"n": 2}
        assert client.get(later.id).finished
        assert [row.id for row in client.list(limit=5).data] == [later.id, done.id]
        assert client.count(status="success") == 2
        assert [found.id for found in client.versions("echo")] == [skill.id]
        assert client.unregister("echo") == 1


async def test_a_change_by_one_dispatcher_is_in_force_in_the_other_at_once(
    spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker
) -> None:
    one, two = await asyncio.gather(spawn_dispatcher(), spawn_dispatcher())
    await spawn_worker(SKILLS_WORKER_QUEUES="direct")
    async with Client(two.url, MANAGEMENT_TOKEN) as other, api(one.url) as http:
        made = await http.post(
            "/api/skills/install", json={"name": "echo", "handlerCode": "echo-handler"}
        )
        path = f"/api/skills/{made.json()['id']}"
        await other.submit("echo")
        for mode in ("off", "on", "off"):
            await http.put(path, json={"mode": mode})

            async def in_force(mode: str = mode) -> bool:
                try:
                    await other.submit("echo", wait_s=0)
                except SkillDisabled:
                    return mode == "off"
                return mode == "on"

            await until(in_force, f"mode {mode} in the other dispatcher", deadline_s=2)


async def test_a_dispatcher_that_stops_answers_those_who_wait_and_ends_well(
    spawn_dispatcher: SpawnDispatcher, spawn_worker: SpawnWorker
) -> None:
    room = await spawn_dispatcher()
    await spawn_worker(SKILLS_WORKER_QUEUES="direct")
    async with api(room.url) as http:
        await http.post("/api/skills/install", json={"name": "sleep", "handler": "sleep-handler"})

        async def run(ms: int) -> httpx.Response:
            body = {"skillName": "sleep", "input": {"ms": ms}}
            return await http.post("/api/skills/executions", json=body)

        short, long = asyncio.create_task(run(2000)), asyncio.create_task(run(60_000))

        async def both_run() -> bool:
            async with api(room.url) as looking:
                page = await looking.get("/api/skills/executions", params={"status": "running"})
                return len(page.json()["data"]) == 2

        await until(both_run, "both executions run")
        room.terminate()
        assert (await short).status_code == 200
        answer = await long
        assert answer.status_code == 202
        assert answer.headers["Location"]
    assert room.wait() == 0


async def test_readiness_tells_what_is_away(spawn_dispatcher: SpawnDispatcher) -> None:
    room = await spawn_dispatcher(SKILLS_REDIS_URL="redis://127.0.0.1:1/0")
    async with api(room.url) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["redis"]) == (200, "degraded")
        assert (await http.get("/api/skills")).status_code == 200


async def test_a_process_that_cannot_start_says_why_in_one_line(
    spawn_dispatcher: SpawnDispatcher, empty_database_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for variables, status, told in startups(port, empty_database_url):
            room = await spawn_dispatcher(ready=False, **variables)
            assert await asyncio.to_thread(room.wait) == status, room.logged()
            lines = [line for line in room.logged().splitlines() if not line.startswith("{")]
            assert len(lines) == 1, room.logged()
            assert lines[0].startswith("skillfleet dispatcher: ")
            assert told in lines[0]


def startups(taken: int, empty_database_url: str) -> list[tuple[dict[str, str], int, str]]:
    """Return settings that can't work, the exit status they mean, and what is said of them."""
    away = f"postgresql://127.0.0.1:{free_port()}/none"
    found: list[tuple[dict[str, Any], int, str]] = [
        ({"SKILLS_HTTP_PORT": str(taken)}, 4, f"port {taken}"),
        ({"SKILLS_DATABASE_URL": away}, 4, "SKILLS_DATABASE_URL"),
        ({"SKILLS_DATABASE_URL": empty_database_url}, 2, "skillfleet migrate"),
        ({"SKILLS_HTTP_PROT": "1"}, 2, "SKILLS_HTTP_PORT"),
        ({"SKILLS_MANAGEMENT_TOKEN": "two words"}, 2, "SKILLS_MANAGEMENT_TOKEN"),
        ({"SKILLS_REDIS_URL": "nonsense"}, 2, "SKILLS_REDIS_URL"),
    ]
    return found
