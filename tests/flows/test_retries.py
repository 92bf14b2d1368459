from datetime import datetime

from shared.states import Status
from tests.flows.conftest import Desk, Gate, SpawnSpecimens, exited


async def test_a_failure_that_may_pass_is_tried_again_until_it_passes(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    ended = (await desk.send("flaky", {"failures": 2}, wait_s=30)).execution
    assert (ended.status, ended.output, ended.attempt) == (Status.SUCCESS, {"attempt": 3}, 3)
    assert [entry["attempt"] for entry in ended.attempts] == [1, 2]
    for entry in ended.attempts:
        assert set(entry) == {
            "attempt",
            "outcome",
            "errorCode",
            "errorMessage",
            "workerId",
            "durationMs",
            "startedAt",
            "finishedAt",
        }
    assert ended.error_code is None


async def test_runs_are_one_and_the_retries_and_the_caller_waits_for_the_last(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    ended = (await desk.send("flaky", {"failures": 99}, max_retries=2, wait_s=30)).execution
    assert (ended.status, ended.error_code, ended.attempt) == (Status.ERROR, "handler_failed", 3)
    assert len(ended.attempts) == 3


async def test_what_is_not_idempotent_is_tried_once_unless_its_skill_says_that_it_is(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    once = (await desk.send("flaky-once", wait_s=30)).execution
    assert (once.status, once.attempt) == (Status.ERROR, 1)
    await desk.install("flaky-safe", handler_code="flaky-once", idempotent=True, max_retries=1)
    twice = (await desk.send("flaky-safe", wait_s=30)).execution
    assert (twice.status, twice.attempt) == (Status.ERROR, 2)


async def test_the_backoff_is_waited_for(desk: Desk, specimens: SpawnSpecimens) -> None:
    await specimens()
    ended = (await desk.send("flaky", {"failures": 1, "afterS": 0.7}, wait_s=30)).execution
    assert ended.status is Status.SUCCESS
    assert ended.started_at is not None
    waited = ended.started_at.timestamp() - finished(ended.attempts[0]["finishedAt"])
    assert waited >= 0.7


def finished(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


async def test_a_timeout_is_tried_again_only_where_the_skill_wants_it(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await specimens()
    once = (await desk.send("gate", gate.input, timeout_ms=100, wait_s=30)).execution
    assert (once.status, once.attempt) == (Status.TIMEOUT, 1)
    await desk.install(
        "gate-again", handler_code="gate", retry_on_timeout=True, timeout_ms=100, max_retries=1
    )
    twice = (await desk.send("gate-again", gate.input, wait_s=30)).execution
    assert (twice.status, twice.attempt) == (Status.TIMEOUT, 2)
    assert [entry["errorCode"] for entry in twice.attempts] == ["timed_out"] * 2


async def test_a_retry_may_run_on_another_worker(desk: Desk, specimens: SpawnSpecimens) -> None:
    first = await specimens()
    sent = await desk.send("flaky", {"failures": 1, "afterS": 2})

    failed = await desk.reaches(sent.execution.id, Status.PENDING)
    while not failed["attempts"]:
        failed = await desk.reaches(sent.execution.id, Status.PENDING)
    first.terminate()
    assert await exited(first) == 0
    await specimens()
    done = await desk.reaches(sent.execution.id, Status.SUCCESS)
    assert done["worker_id"] != failed["attempts"][0]["workerId"]
