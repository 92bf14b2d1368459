"""Power cuts: of workers, of dispatchers, of Redis' memory."""

import asyncio

import httpx

from shared.states import Status
from tests.conftest import SpawnDispatcher
from tests.factories import install, new_execution, redis_to
from tests.faults.proxy import proxied
from tests.flows.conftest import Desk, Gate, SpawnSpecimens, exited
from tests.services import MANAGEMENT_TOKEN
from tests.signals import until


async def test_the_work_of_a_killed_worker_is_done_by_another_or_ends_as_lost(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate
) -> None:
    doomed = await specimens()
    again = await desk.send("gate", gate.input)
    await gate.noted("start 1")
    over = await desk.send("gate-once", gate.input)
    await gate.noted("start 1", "start 1")
    doomed.kill()
    assert await exited(doomed) == -9
    await specimens()
    await gate.noted("start 1", "start 1", "start 2")
    gate.open.touch()

    done = await desk.reaches(again.execution.id)
    assert (done["status"], done["attempt"]) == ("success", 2)
    (entry,) = done["attempts"]
    assert (entry["attempt"], entry["errorCode"]) == (1, "worker_lost")
    assert entry["workerId"] != done["worker_id"]
    ended = await desk.reaches(over.execution.id)
    assert (ended["status"], ended["error_code"], ended["attempt"]) == ("error", "worker_lost", 1)
    assert gate.lines() == ["start 1", "start 1", "start 2", "end 2"]
    await desk.forget()  # the dead worker's entries stay until their lease runs out


async def test_an_entry_that_died_with_its_worker_before_the_claim_is_taken_by_another(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    sent = await desk.send("echo")
    # What a worker leaves that dies between arq's lock and the claim.
    key = f"arq:in-progress:{sent.execution.id}.0"
    await desk.dispatcher.redis.set(key, "1", px=700)
    await specimens()
    assert (await desk.reaches(sent.execution.id))["status"] == "success"


async def test_a_row_whose_dispatcher_died_before_it_rang_runs(
    desk: Desk, specimens: SpawnSpecimens
) -> None:
    await specimens()
    new = new_execution(skill_name="echo", input='{"never": "rung"}')
    await desk.dispatcher.executions.create(new)
    done = await desk.reaches(new.id)
    assert (done["status"], done["output"]) == ("success", {"never": "rung"})


async def test_a_dispatcher_killed_between_commit_and_ring_loses_nothing(
    desk: Desk, specimens: SpawnSpecimens, spawn_dispatcher: SpawnDispatcher, redis_url: str
) -> None:
    await specimens()
    await install(desk.dispatcher.pool, "kept", handler_code="echo")
    async with proxied(redis_url) as proxy:
        dispatcher = await spawn_dispatcher(SKILLS_REDIS_URL=proxy.url)
        async with httpx.AsyncClient(base_url=dispatcher.url, trust_env=False) as http:
            first = await asked(http)
            assert first.status_code == httpx.codes.OK, first.text
            proxy.freeze()  # from here on, ringing takes for ever
            answer = asyncio.create_task(asked(http))

            async def committed() -> bool:
                return await desk.dispatcher.count() == 2

            await until(committed, "the row is committed")
            dispatcher.kill()
            assert await exited(dispatcher) == -9
            await asyncio.gather(answer, return_exceptions=True)
        await proxy.cut()
    newest, _ = await desk.dispatcher.list()
    assert (await desk.reaches(newest.id))["status"] == "success"


async def asked(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post(
        "/api/skills/executions",
        headers={"Authorization": f"Bearer {MANAGEMENT_TOKEN}"},
        json={"skillName": "kept", "input": {"n": 1}},
    )


async def test_a_redis_that_forgot_everything_costs_no_execution(
    desk: Desk, specimens: SpawnSpecimens, gate: Gate, redis_url: str
) -> None:
    await specimens(SKILLS_WORKER_CONCURRENCY="1")
    running = await desk.send("gate-once", gate.input)
    await gate.noted("start 1")
    waiting = [await desk.send("echo", {"n": n}) for n in range(3)]
    async with redis_to(redis_url) as redis:
        await redis.flushdb()
    gate.open.touch()
    assert (await desk.reaches(running.execution.id))["status"] == Status.SUCCESS
    for submission in waiting:
        ended = await desk.reaches(submission.execution.id)
        assert (ended["status"], ended["attempt"]) == ("success", 1)
    assert gate.lines() == ["start 1", "end 1"]
