import json
import pickletools
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from shared import announce, live
from shared.errors import SwitchedOff
from shared.redis import queue_key
from shared.settings import variables
from shared.states import Status
from tests.conftest import SpawnDispatcher, SpawnWorker
from tests.factories import redis_to
from tests.flows.conftest import QUICK, Desk, Gate, SpawnSpecimens, exited, lines_of
from tests.signals import until


async def test_an_execution_runs_from_the_library_through_a_worker_and_back(
    desk: Desk, specimens: SpawnSpecimens, redis_url: str
) -> None:
    worker = await specimens()
    execution = await desk.dispatcher.submit("echo", {"hello": ["wörld", 1, None]})
    assert (execution.status, execution.output) == (
        Status.SUCCESS,
        {"hello": ["wörld", 1, None]},
    )
    stored = await desk.row(execution.id)
    assert stored["created_at"] <= stored["started_at"] <= stored["finished_at"]
    assert stored["attempt"] == 1
    assert stored["worker_id"].startswith("worker-")
    assert await desk.dispatcher.get(execution.id) == execution

    told = await desk.dispatcher.submit("told", api_key_id="key-7")
    assert told.output["apiKeyId"] == "key-7"
    async with redis_to(redis_url) as redis:
        assert await pickles(redis) == []
    mine = [line for line in lines_of(worker) if line.get("skill") == "told"]
    assert {line["execution_id"] for line in mine} == {str(told.id)}
    assert [line["event"] for line in mine] == [
        "specimen.speaks",
        "specimen.speaks.too",
    ]
    assert all(line["attempt"] == 1 and line["room"] == "worker" for line in mine)
    assert "open sesame" not in worker.logged()


async def pickles(redis: Redis) -> list[bytes]:
    """Return what is a pickle among the values and members that Redis holds."""
    values: list[bytes] = []
    for key in await redis.keys("*"):
        match await redis.type(key):
            case b"string":
                values.append(await redis.get(key))
            case b"zset":
                values += await redis.zrange(key, 0, -1)
            case b"list":
                values += await redis.lrange(key, 0, -1)  # type: ignore[misc]  # it is awaitable
            case b"hash":
                values += await redis.hvals(key)  # type: ignore[misc]  # it is awaitable
            case kind:
                raise AssertionError(f"{key!r} is a {kind!r}; teach this test to read it")
    return [value for value in values if is_pickle(value)]


def is_pickle(value: bytes) -> bool:
    if not value.startswith(b"\x80"):
        return False
    try:
        list(pickletools.genops(value))
    except ValueError:
        return False
    return True


async def test_a_hundred_at_once_run_once_each_on_two_workers(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    for _ in range(2):
        await specimens()
    sent = [await desk.send("echo", {"n": n}) for n in range(100)]
    for submission in sent:
        ended = await desk.reaches(submission.execution.id)
        assert (ended["status"], ended["attempt"]) == ("success", 1)


async def test_without_a_worker_it_waits_and_says_so(desk: Desk, specimens: SpawnSpecimens) -> None:
    waiting = await desk.send("echo")
    assert [warning["code"] for warning in waiting.warnings] == ["no_worker"]
    assert waiting.execution.status is Status.PENDING
    await specimens()
    assert (await desk.reaches(waiting.execution.id))["status"] == "success"
    again = await desk.send("echo", wait_s=None)
    assert (again.execution.status, again.warnings) == (Status.SUCCESS, ())


async def test_the_time_limit_is_the_call_s_else_the_skill_s_else_the_handler_s_else_the_setting(
    desk: Desk,
) -> None:
    info = announce.HandlerInfo(
        name="timed",
        version="1.0.0",
        description="",
        queue="direct",
        timeout_ms=3000,
        max_timeout_ms=None,
        timeout_input=None,
        max_retries=2,
        idempotent=True,
        retry_on_timeout=False,
    )
    await announce.announce(desk.dispatcher.pool, [(info, None)])
    await desk.install("plain", handler_code="timed")
    await desk.install("slow", handler_code="timed", timeout_ms=4000, max_retries=1)
    found = [
        await desk.send("slow", timeout_ms=5000, max_retries=0),
        await desk.send("slow"),
        await desk.send("plain"),
        await desk.send("echo"),
    ]
    stored = [await desk.row(submission.execution.id) for submission in found]
    assert [row["timeout_ms"] for row in stored] == [5000, 4000, 3000, None]
    assert [row["max_retries"] for row in stored] == [0, 1, 2, 3]
    await desk.forget()


async def test_a_timeout_set_while_the_fleet_runs_is_in_force_at_once(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await specimens()
    await live.put(desk.dispatcher.pool, {"executionTimeoutMs": 100}, "test")
    await desk.dispatcher.registry.changed()
    ended = await desk.send("gate-once", gate.input, wait_s=None)
    assert (ended.execution.status, ended.execution.error_code) == (Status.TIMEOUT, "timed_out")
    assert ended.execution.error_message == "Skill execution timed out"


async def test_the_master_switch_stops_claims_lets_what_runs_finish_and_comes_back(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await specimens(SKILLS_WORKER_CONCURRENCY="1")
    running = await desk.send("gate", gate.input)
    await gate.noted("start 1")
    waiting = await desk.send("echo")
    await live.put(desk.dispatcher.pool, {"skillsEnabled": False}, "test")
    await desk.dispatcher.registry.changed()
    with pytest.raises(SwitchedOff, match="Skills execution is disabled"):
        await desk.send("echo")
    gate.open.touch()
    assert (await desk.reaches(running.execution.id))["status"] == "success"

    async def turned_away() -> bool:
        return int(await desk.dispatcher.redis.zcard(queue_key("direct"))) == 0

    await until(turned_away, "the entry was looked at and left")
    assert (await desk.row(waiting.execution.id))["status"] == "pending"
    await live.put(desk.dispatcher.pool, {"skillsEnabled": True}, "test")
    await desk.dispatcher.registry.changed()
    assert (await desk.reaches(waiting.execution.id))["status"] == "success"


async def test_higher_priorities_go_first(desk: Desk, specimens: SpawnSpecimens) -> None:
    sent = [await desk.send("echo", priority=name) for name in ("low", "normal", "high")]
    await specimens(SKILLS_WORKER_CONCURRENCY="1")
    ended = [await desk.reaches(submission.execution.id) for submission in sent]
    low, normal, high = (row["started_at"] for row in ended)
    assert high < normal < low


async def test_nothing_starts_before_its_time(desk: Desk, specimens: SpawnSpecimens) -> None:
    await specimens()
    due = datetime.now(UTC) + timedelta(seconds=1)
    ended = await desk.send("echo", not_before=due, wait_s=None)
    assert ended.execution.status is Status.SUCCESS
    assert ended.execution.started_at is not None
    assert ended.execution.started_at >= due


async def test_what_expires_while_it_waits_ends_as_expired_and_wakes_its_caller(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    await desk.install("nobody", handler_code="nobody")
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    ended = await desk.send("nobody", expires_at=soon, wait_s=30)
    assert (ended.execution.status, ended.execution.error_code) == (Status.ERROR, "expired")
    assert ended.execution.attempt == 0


async def test_an_entry_finds_the_one_worker_that_offers_its_handler(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens(SKILLS_HANDLER_MODULES="worker.samples")
    await specimens()
    for n in range(5):
        ended = await desk.send("echo", {"n": n}, wait_s=None)
        assert ended.execution.output == {"n": n}


async def test_a_worker_starts_with_every_setting_set(
    spawn_worker: SpawnWorker, room_env: dict[str, str]
) -> None:
    everything = {name: VALUES.get(name, "") for name in variables()}
    everything.update({**QUICK, **room_env})
    assert [name for name, value in everything.items() if not value] == []
    worker = await spawn_worker(**everything)
    worker.terminate()
    assert await exited(worker) == 0


VALUES = {
    "SKILLS_DATABASE_POOL_SIZE": "4",
    "SKILLS_DATABASE_STATEMENT_TIMEOUT_MS": "20000",
    "SKILLS_HTTP_HOST": "127.0.0.1",
    "SKILLS_HTTP_PORT": "0",
    "SKILLS_HTTP_PROCESSES": "2",
    "SKILLS_MAX_FILE_BYTES": "1000",
    "SKILLS_MAX_HTTP_RESPONSE_BYTES": "1000",
    "SKILLS_MAX_SANDBOX_OUTPUT_CHARS": "1000",
    "SKILLS_MAX_INPUT_BYTES": "1000",
    "SKILLS_MAX_OUTPUT_BYTES": "1000",
    "SKILLS_SANDBOX_TIMEOUT_MS": "1000",
    "SKILLS_SANDBOX_NETWORK_ENABLED": "true",
    "SKILLS_SANDBOX_RUNTIME": "runc",
    "SKILLS_SANDBOX_MAX_CPU_LIMIT": "500",
    "SKILLS_SANDBOX_MAX_MEMORY_LIMIT": "64",
    "SKILLS_SANDBOX_CONCURRENCY": "2",
    "SKILLS_SANDBOX_PULL_POLICY": "never",
    "SKILLS_SANDBOX_PULL_TIMEOUT_MS": "5000",
    "SKILLS_SANDBOX_DNS": "1.1.1.1",
    "SKILLS_ALLOWED_SANDBOX_IMAGES": "busybox:1",
    "SKILLS_WORKER_CONCURRENCY": "3",
    "SKILLS_WORKER_GRACE_MS": "1000",
    "SKILLS_IDEMPOTENCY_TTL_MS": "60000",
    "SKILLS_LOG_LEVEL": "debug",
}


@pytest.mark.parametrize("room", ["worker", "dispatcher"])
async def test_a_room_with_a_misspelt_setting_says_which_one_was_meant(
    spawn_worker: SpawnWorker, spawn_dispatcher: SpawnDispatcher, room: str
) -> None:
    start = {"worker": spawn_worker, "dispatcher": spawn_dispatcher}[room]
    process = await start(ready=False, SKILLS_WORKER_GRACE="1")
    assert await exited(process) == 2
    assert "Did you mean SKILLS_WORKER_GRACE_MS?" in process.logged()
    assert "Traceback" not in process.logged()


async def test_every_line_of_a_worker_is_json(desk: Desk, specimens: SpawnSpecimens) -> None:
    worker = await specimens()
    dropped = await desk.send("dropped", max_retries=0, wait_s=None)
    assert dropped.execution.error_message == "ConnectionResetError: the peer went away"
    worker.terminate()
    assert await exited(worker) == 0
    traces = [line["exception"] for line in lines_of(worker) if "exception" in line]
    assert any("ConnectionResetError" in trace for trace in traces)
    for line in worker.logged().splitlines():
        assert {"event", "level", "timestamp", "room"} <= json.loads(line).keys()
