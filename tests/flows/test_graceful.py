import os
import signal

from shared.states import Status
from tests.flows.conftest import Desk, Gate, SpawnSpecimens, exited
from tests.services import Room
from tests.signals import until


async def stopping(worker: Room) -> None:
    """Wait until a worker has said that it stops."""

    async def said() -> bool:
        return "worker.stopping" in worker.logged()

    await until(said, "the worker stops")


async def test_a_stop_lets_what_runs_finish_and_takes_nothing_new(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    worker = await specimens(SKILLS_WORKER_GRACE_MS="30000")
    running = await desk.send("gate-once", gate.input)
    await gate.noted("start 1")
    worker.terminate()
    await stopping(worker)
    waiting = await desk.send("echo")
    gate.open.touch()
    assert await exited(worker) == 0
    ended = await desk.row(running.execution.id)
    assert (ended["status"], ended["attempt"]) == ("success", 1)
    assert gate.lines() == ["start 1", "end 1"]
    assert (await desk.row(waiting.execution.id))["status"] == "pending"
    await specimens()
    assert (await desk.reaches(waiting.execution.id))["status"] == "success"


async def test_what_does_not_finish_in_time_is_handed_back_or_ends_as_lost(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    worker = await specimens(SKILLS_WORKER_GRACE_MS="100")
    back = await desk.send("gate", gate.input, max_retries=0)
    await gate.noted("start 1")
    over = await desk.send("gate-once", gate.input)
    await gate.noted("start 1", "start 1")
    worker.terminate()
    assert await exited(worker) == 0

    ended = await desk.row(over.execution.id)
    assert (ended["status"], ended["error_code"]) == ("error", "worker_lost")
    returned = await desk.row(back.execution.id)
    assert (returned["status"], returned["worker_id"]) == ("pending", None)
    assert [entry["outcome"] for entry in returned["attempts"]] == ["handed_back"]

    gate.log.unlink()
    gate.open.touch()
    await specimens()
    done = await desk.reaches(back.execution.id)
    assert (done["status"], done["attempt"], done["output"]) == ("success", 2, {"attempt": 2})
    assert gate.lines() == ["start 2", "end 2"], "a hand-back does not count against the budget"


async def test_a_second_signal_cuts_the_grace_short(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    worker = await specimens(SKILLS_WORKER_GRACE_MS="600000")
    back = await desk.send("gate", gate.input)
    await gate.noted("start 1")
    worker.terminate()
    await stopping(worker)
    os.kill(worker.pid, signal.SIGINT)
    assert await exited(worker) == 0
    assert (await desk.row(back.execution.id))["status"] == "pending"
    gate.open.touch()
    await specimens()
    await desk.reaches(back.execution.id, Status.SUCCESS)


async def test_an_idle_worker_stops_at_once_and_is_known_to_be_gone(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    worker = await specimens(SKILLS_WORKER_GRACE_MS="600000")
    worker.terminate()
    assert await exited(worker) == 0
    stopped = await desk.dispatcher.pool.fetchval("SELECT stopped_at FROM workers")
    assert stopped is not None


async def test_a_blocked_thread_does_not_keep_a_worker_from_ending(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    await desk.install("gate-thread")
    worker = await specimens(SKILLS_WORKER_GRACE_MS="100")
    over = await desk.send("gate-thread", gate.input)
    await gate.noted("start 1")
    worker.terminate()
    assert await exited(worker) == 0
    assert (await desk.row(over.execution.id))["error_code"] == "worker_lost"
