"""Cancelling what real workers run, and what waits for a retry."""

from datetime import UTC, datetime, timedelta

import pytest

from shared.errors import AlreadyFinished
from shared.models import Execution
from shared.states import Status
from tests.flows.conftest import Desk, Gate, SpawnSpecimens
from tests.signals import until


@pytest.mark.parametrize("skill", ["gate", "gate-once"])
async def test_a_running_execution_is_stopped_by_its_worker(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate, skill: str
) -> None:
    await specimens()
    sent = await desk.send(skill, gate.input)
    await gate.noted("start 1")
    done = await desk.dispatcher.cancel(sent.execution.id, wait_s=30)
    assert (done.status, done.error_code, done.cancelled_by) == (
        Status.ERROR, "cancelled", "library",
    )  # fmt: skip
    assert [entry["outcome"] for entry in done.attempts] == ["cancelled"]
    assert gate.lines() == ["start 1"]
    assert await desk.dispatcher.cancel(sent.execution.id) == done


async def test_what_waits_for_its_retry_is_not_tried_again(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    sent = await desk.send("flaky", {"failures": 1, "afterS": 1})

    async def waits() -> bool:
        return (await desk.row(sent.execution.id))["retry_at"] is not None

    await until(waits, "it waits for its retry")
    done = await desk.dispatcher.cancel(sent.execution.id)
    assert (done.error_code, done.attempt, done.retry_at) == ("cancelled", 1, None)
    later = await desk.send("echo", wait_s=30, not_before=datetime.now(UTC) + timedelta(seconds=1))
    assert later.execution.status is Status.SUCCESS
    assert await desk.dispatcher.get(sent.execution.id) == done
    with pytest.raises(AlreadyFinished):
        await desk.dispatcher.cancel(later.execution.id)


async def test_many_run_and_are_waited_for_together(desk: Desk, specimens: SpawnSpecimens) -> None:
    await specimens()
    asked = [{"skill_name": "echo", "input": {"n": n}} for n in range(300)]
    done = await desk.dispatcher.submit_many(asked, wait_s=60)
    rows = [found for found in done if isinstance(found, Execution)]
    assert [row.output for row in rows] == [{"n": n} for n in range(300)]
    assert {row.status for row in rows} == {Status.SUCCESS}
