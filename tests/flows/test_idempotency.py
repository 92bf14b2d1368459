import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from shared.errors import IdentityConflict, InvalidInput
from shared.states import Status
from tests.flows.conftest import Desk, Gate, SpawnSpecimens
from tests.signals import until


async def passed(moment: datetime) -> bool:
    return datetime.now(UTC) > moment


async def test_fifty_at_once_with_one_key_run_once_and_all_get_its_result(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await specimens()
    gate.open.touch()
    found = await asyncio.gather(
        *(desk.send("gate-once", gate.input, key="k", wait_s=30) for _ in range(50))
    )
    assert len({submission.execution.id for submission in found}) == 1
    assert {submission.execution.status for submission in found} == {Status.SUCCESS}
    assert sum(not submission.replayed for submission in found) == 1
    assert gate.lines() == ["start 1", "end 1"]
    assert await desk.dispatcher.count() == 1


async def test_a_replay_while_it_runs_joins_the_wait(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await specimens()
    first = await desk.send("gate-once", gate.input, key="k")
    await gate.noted("start 1")
    joined = asyncio.create_task(desk.send("gate-once", gate.input, key="k", wait_s=30))
    glimpse = await desk.send("gate-once", gate.input, key="k", wait_s=0)
    assert (glimpse.replayed, glimpse.execution.status) == (True, Status.RUNNING)
    assert not joined.done()
    gate.open.touch()
    second = await joined
    assert (second.replayed, second.execution.status) == (True, Status.SUCCESS)
    assert second.execution.id == first.execution.id
    again = await desk.send("gate-once", gate.input, key="k", wait_s=None)
    assert again.execution == second.execution


async def test_a_replay_after_its_time_is_answered_and_a_new_request_is_not(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    soon = datetime.now(UTC) + timedelta(seconds=2)
    first = await desk.send("echo", {"a": 1}, key="k", expires_at=soon, wait_s=30)
    assert first.execution.status == Status.SUCCESS
    await until(partial(passed, soon), "its time is over")
    again = await desk.send("echo", {"a": 1}, key="k", expires_at=soon)
    assert (again.replayed, again.execution) == (True, first.execution)
    with pytest.raises(IdentityConflict):
        await desk.send("echo", {"a": 2}, key="k", expires_at=soon)
    for key in ("other", None):
        with pytest.raises(InvalidInput, match="expired before it came"):
            await desk.send("echo", {"a": 1}, key=key, expires_at=soon)
    assert await desk.dispatcher.count() == 1


async def test_one_key_for_two_requests_is_a_conflict(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    await desk.install("echo", version="1.1.0")
    sent = await desk.send("echo", {"a": 1, "b": 2.0}, key="k", wait_s=None)
    same = await desk.send("echo", {"b": 2, "a": 1}, key="k", wait_s=None)
    assert (same.replayed, same.execution.id) == (True, sent.execution.id)
    for skill, given in (("echo", {"a": 1}), ("told", {"a": 1, "b": 2}), ("echo@^1.0.0", {})):
        with pytest.raises(IdentityConflict):
            await desk.send(skill, given, key="k")
    assert await desk.dispatcher.count() == 1


async def test_a_key_belongs_to_its_owner_and_to_its_time(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    mine = await desk.send("echo", key="k", api_key_id="key-1", wait_s=None)
    theirs = await desk.send("echo", key="k", api_key_id="key-2", wait_s=None)
    assert theirs.execution.id != mine.execution.id
    assert not theirs.replayed
    await desk.dispatcher.pool.execute("UPDATE execution_keys SET expires_at = clock_timestamp()")
    later = await desk.send("echo", key="k", api_key_id="key-1", wait_s=None)
    assert (later.replayed, later.execution.status) == (False, Status.SUCCESS)
    assert later.execution.id != mine.execution.id


async def test_a_request_s_identity_and_tool_call_are_a_key_too(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()

    async def call(identity: str | None, tool_call: str | None) -> tuple[object, bool]:
        sent = await desk.send(
            "echo", request_identity=identity, tool_call_id=tool_call, wait_s=None
        )
        return sent.execution.id, sent.replayed

    first, _ = await call("r", "t")
    assert await call("r", "t") == (first, True)
    for other in (("r", "u"), ("q", "t"), ("rt", None), (None, "t"), (None, None), ("r:t", "x")):
        found, replayed = await call(*other)
        assert (found != first, replayed) == (True, False), other
    again, replayed = await call("r", None)
    assert not replayed, "half an identity is none"
    assert again != first
