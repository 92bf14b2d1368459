import asyncio

from shared.tasks import end


async def test_tasks_that_lose_a_cancellation_are_ended_all_the_same() -> None:
    lost = 0

    async def careless() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    async def failed() -> None:
        raise ValueError

    tasks = [asyncio.create_task(careless()), asyncio.create_task(failed())]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await end(*tasks, again_s=0.01)
    assert lost == 3
    assert tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), ValueError)


async def test_there_may_be_nothing_to_end() -> None:
    await end()
