import asyncio

import pytest

from worker import deadlines
from worker.deadlines import Deadlines


class Thing:
    """Something timed that a test ends."""

    def __init__(self) -> None:
        self.ended = False
        self.late = asyncio.Event()

    def over(self) -> bool:
        return self.ended


def kept() -> Deadlines[Thing]:
    return Deadlines(lambda thing: thing.late.set())


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_each_is_called_late_at_its_own_time_whatever_the_order_they_came_in() -> None:
    watched, order = kept(), list[float]()
    things = {seconds: Thing() for seconds in (60.0, 0.03, -1.0, 0.01)}

    async def noted(seconds: float) -> None:
        await things[seconds].late.wait()
        order.append(seconds)

    for seconds, thing in things.items():
        watched.add(after(seconds), thing)
    await asyncio.wait_for(asyncio.gather(*map(noted, (0.03, 0.01, -1.0))), 20)
    assert order == [-1.0, 0.01, 0.03]
    assert not things[60.0].late.is_set()


async def test_what_is_over_is_not_called_late() -> None:
    watched, over, open_one = kept(), Thing(), Thing()
    watched.add(after(0.0), over)
    watched.add(after(0.01), open_one)
    over.ended = True
    await asyncio.wait_for(open_one.late.wait(), 20)
    assert not over.late.is_set()
    assert len(watched) == 0


async def test_what_is_over_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SWEEP_AT", 10)
    watched, open_one = Deadlines[Thing](lambda thing: thing.late.set()), Thing()
    watched._sweep_at = 10
    watched.add(after(0.05), open_one)
    for _ in range(1000):
        thing = Thing()
        watched.add(after(3600), thing)
        thing.ended = True
    assert len(watched) <= 12
    await asyncio.wait_for(open_one.late.wait(), 20)
