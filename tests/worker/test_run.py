import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from uuid_utils.compat import uuid7

from shared import live, presence
from shared.presence import Presence
from shared.redis import FINISHED_CHANNEL, queue_key
from tests.factories import install, ran, redis_to, row, run_execution, submit
from tests.signals import until
from worker.room import Room


async def queued(room: Room) -> list[str]:
    return [m.decode() for m in await room.redis.zrange(queue_key("direct"), 0, -1)]


async def test_an_execution_runs_to_its_end_and_says_so(room: Room, redis_url: str) -> None:
    async with redis_to(redis_url) as redis, redis.pubsub() as ear:
        await ear.subscribe(FINISHED_CHANNEL)
        done = await ran(room, "echo", input='{"a": 1}')

        async def heard() -> str | None:
            message = await ear.get_message(ignore_subscribe_messages=True)
            return str(message["data"].decode()) if message else None

        assert await until(heard, "the end is announced") == str(done["id"])
    assert (done["status"], done["output"], done["attempt"]) == ("success", {"a": 1}, 1)
    assert done["worker_id"] == room.id
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]
    assert done["duration_ms"] >= 0
    assert room.held == set()


async def test_the_handler_learns_what_it_is_part_of(room: Room) -> None:
    done = await ran(room, "told", api_key_id="key-9", caller="rest", timeout_ms=50_000)
    output = done["output"]
    assert 40_000 < output.pop("remainingMs") <= 50_000
    assert output == {
        "executionId": str(done["id"]),
        "attempt": 1,
        "apiKeyId": "key-9",
        "caller": "rest",
    }


async def test_an_execution_that_is_gone_or_taken_runs_nothing(room: Room) -> None:
    assert await run_execution(room, uuid7())
    done = await ran(room, "echo")
    assert await run_execution(room, done["id"])
    assert await row(room.pool, done["id"]) == done


async def test_a_duplicate_delivery_runs_once(room: Room, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "open"
    given = json.dumps({"log": str(log), "open": str(gate)})
    execution_id = await submit(room.executions, handler="gate-once", input=given)
    running = [asyncio.create_task(run_execution(room, execution_id)) for _ in range(5)]

    async def started() -> bool:
        return log.exists()

    await until(started, "it has started")
    gate.touch()
    await asyncio.gather(*running)
    assert log.read_text() == "start 1\nend 1\n"


async def test_the_limit_of_the_row_goes_before_the_setting(room: Room, tmp_path: Path) -> None:
    await live.put(room.pool, {"executionTimeoutMs": 60_000}, "test")
    await room.registry.changed()
    given = json.dumps({"log": str(tmp_path / "log"), "open": str(tmp_path / "never")})
    done = await ran(room, "gate-once", input=given, timeout_ms=50)
    assert (done["status"], done["error_code"]) == ("timeout", "timed_out")
    assert done["error_message"] == "Skill execution timed out"
    assert 50 <= done["duration_ms"] < 30_000


async def test_a_changed_limit_is_in_force_at_once(room: Room, tmp_path: Path) -> None:
    given = json.dumps({"log": str(tmp_path / "log"), "open": str(tmp_path / "never")})
    for handler in ("gate-once", "gate-thread"):
        await live.put(room.pool, {"executionTimeoutMs": 60}, "test")
        await room.registry.changed()
        assert (await ran(room, handler, input=given))["status"] == "timeout"
    (tmp_path / "never").touch()  # lets the thread that was left behind go


async def test_switched_off_nothing_is_claimed_and_on_again_it_runs(room: Room) -> None:
    await live.put(room.pool, {"skillsEnabled": False}, "test")
    await room.registry.changed()
    waiting = await ran(room, "echo")
    assert (waiting["status"], waiting["attempt"]) == ("pending", 0)
    await live.put(room.pool, {"skillsEnabled": True}, "test")
    await room.registry.changed()
    assert await run_execution(room, waiting["id"])
    assert (await row(room.pool, waiting["id"]))["status"] == "success"


async def test_the_output_is_judged_by_the_skill_s_schema(room: Room) -> None:
    schema = {"output": {"type": "object", "required": ["answer"]}}
    skill = await install(room.pool, "asks", handler_code="echo", skill_schema=schema)
    await room.registry.changed()
    good = await ran(room, "echo", skill_id=skill.id, input='{"answer": 42}')
    assert good["status"] == "success"
    bad = await ran(room, "echo", skill_id=skill.id, input='{"question": 1}')
    assert (bad["status"], bad["error_code"]) == ("error", "invalid_output")
    assert bad["output"] == {"question": 1}
    orphan = await ran(room, "echo", skill_id=uuid4())
    assert orphan["status"] == "success", "the skill may be deleted meanwhile"


async def test_a_stored_schema_that_does_not_compile_ends_the_execution(room: Room) -> None:
    skill = await install(room.pool, "broken", handler_code="echo")
    await room.pool.execute(
        "UPDATE skills SET schema = $1 WHERE id = $2", {"output": {"type": "nonsense"}}, skill.id
    )
    await room.registry.refresh()
    done = await ran(room, "echo", skill_id=skill.id)
    assert (done["status"], done["error_code"]) == ("error", "internal")


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        ("exits", "handler_failed"),
        ("cancels-itself", "handler_failed"),
        ("overflows", "internal"),
        ("flaky-once", "handler_failed"),
        ("nothing-ran", "handler_failed"),
    ],
)
async def test_no_row_is_left_running_whatever_the_handler_does(
    room: Room, handler: str, code: str
) -> None:
    done = await ran(room, handler, idempotent=False)
    assert (done["status"], done["error_code"]) == ("error", code)
    assert done["finished_at"] is not None
    assert room.held == set()


async def test_a_retry_goes_back_with_its_history_and_an_entry_of_its_own(room: Room) -> None:
    before = datetime.now(UTC)
    back = await ran(room, "flaky", input='{"failures": 1, "afterS": 0}')
    assert (back["status"], back["worker_id"], back["output"]) == ("pending", None, None)
    (entry,) = back["attempts"]
    began = datetime.fromisoformat(entry.pop("startedAt"))
    ended = datetime.fromisoformat(entry.pop("finishedAt"))
    assert before <= began <= ended
    assert entry.pop("durationMs") >= 0
    assert entry == {
        "attempt": 1,
        "outcome": "failed",
        "errorCode": "handler_failed",
        "errorMessage": "not yet",
        "workerId": room.id,
    }
    assert await queued(room) == [f"{back['id']}.1"]
    assert await run_execution(room, back["id"])
    done = await row(room.pool, back["id"])
    assert (done["status"], done["attempt"], len(done["attempts"])) == ("success", 2, 1)


async def test_the_budget_is_kept(room: Room) -> None:
    given = '{"failures": 99, "afterS": 0}'
    execution_id = await submit(room.executions, handler="flaky", input=given, max_retries=2)
    for _ in range(5):
        await run_execution(room, execution_id)
    done = await row(room.pool, execution_id)
    assert (done["status"], done["error_code"], done["attempt"]) == ("error", "handler_failed", 3)
    assert [entry["attempt"] for entry in done["attempts"]] == [1, 2, 3]


async def test_a_transient_error_waits_for_its_backoff(room: Room) -> None:
    back = await ran(room, "dropped")
    assert back["status"] == "pending"
    assert back["retry_at"] is not None
    assert back["attempts"][0]["errorMessage"] == "ConnectionResetError: the peer went away"


def other_worker(*handlers: str) -> Presence:
    return Presence(
        id="worker-other",
        host="h",
        pid=1,
        queues=("direct",),
        handlers=handlers,
        slots=1,
        running=0,
        sandbox=None,
        lease_ms=10_000,
        rates={},
        consuming=True,
    )


async def test_what_could_not_start_here_goes_to_a_worker_that_may_have_it(room: Room) -> None:
    alone = await ran(room, "nothing-ran", idempotent=False)
    assert alone["status"] == "error"
    await presence.beat(room.pool, other_worker("nothing-ran"))
    back = await ran(room, "nothing-ran", idempotent=False)
    assert (back["status"], back["attempts"][0]["outcome"]) == ("pending", "handed_back")


async def test_an_entry_for_another_worker_s_handler_stays_queued(room: Room) -> None:
    execution_id = await submit(room.executions, handler="theirs")
    assert await run_execution(room, execution_id), "nobody has it: the sweep will ring"
    await presence.beat(room.pool, other_worker("theirs"))
    assert not await run_execution(room, execution_id)


async def test_a_stop_hands_the_idempotent_back_and_ends_the_rest(
    room: Room, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    given = json.dumps({"log": str(log), "open": str(tmp_path / "never")})
    ids = [
        await submit(room.executions, handler="gate", input=given, idempotent=idempotent)
        for idempotent in (True, False)
    ]
    running = [asyncio.create_task(run_execution(room, execution_id)) for execution_id in ids]

    async def both_started() -> bool:
        return log.exists() and log.read_text().count("start") == 2

    await until(both_started, "both have started")
    room.stopping.set()
    await asyncio.gather(*running)
    back, over = [await row(room.pool, execution_id) for execution_id in ids]
    assert (back["status"], back["attempts"][0]["outcome"]) == ("pending", "handed_back")
    assert (over["status"], over["error_code"]) == ("error", "worker_lost")
    assert await queued(room) == [f"{ids[0]}.1"]


async def test_a_fenced_ending_is_dropped_and_announced_to_nobody(
    room: Room, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "open"
    given = json.dumps({"log": str(log), "open": str(gate)})
    execution_id = await submit(room.executions, handler="gate", input=given)
    running = asyncio.create_task(run_execution(room, execution_id))

    async def started() -> bool:
        return log.exists()

    await until(started, "it has started")
    await room.pool.execute(
        "UPDATE skill_executions SET attempt = 2, worker_id = 'worker-other' WHERE id = $1",
        execution_id,
    )
    taken = await row(room.pool, execution_id)
    gate.touch()
    await running
    assert await row(room.pool, execution_id) == taken
