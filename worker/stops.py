"""What ends an attempt from outside: its deadline, a caller's cancellation, this worker's end."""

import asyncio
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any
from uuid import UUID

from worker.deadlines import Deadlines


class Stop(StrEnum):
    """Why an attempt is cut short."""

    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    STOPPING = "stopping"


class Running:
    """One attempt under way. ``ended`` is None when the handler ended by itself, which wins."""

    __slots__ = ("ended", "work")

    def __init__(self, work: "asyncio.Task[Any]") -> None:
        self.work = work
        self.ended: asyncio.Future[Stop | None] = work.get_loop().create_future()
        work.add_done_callback(self._done)

    def over(self) -> bool:
        """Tell whether nothing is left to stop."""
        return self.ended.done()

    def stop(self, why: Stop) -> None:
        """Have it stopped, unless it has ended; the first reason stays."""
        if not self.work.done() and not self.ended.done():
            self.ended.set_result(why)

    def _done(self, _: "asyncio.Future[Any]") -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Stops(asyncio.Event):
    """The attempts of this process and what stops them; set when all of them must end now."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[UUID, Running] = {}
        self._early: set[UUID] = set()
        self._deadlines: Deadlines[Running] = Deadlines(late)

    def begin(self, execution_id: UUID, running: Running, deadline: float) -> None:
        """Watch an attempt until ``end``; one that is to be stopped already is stopped at once."""
        self._running[execution_id] = running
        self._deadlines.add(deadline, running)
        if self.is_set():
            running.stop(Stop.STOPPING)
        elif execution_id in self._early:
            running.stop(Stop.CANCELLED)

    def end(self, execution_id: UUID) -> None:
        """Forget an attempt."""
        self._running.pop(execution_id, None)
        self._early.discard(execution_id)

    def set(self) -> None:
        """Stop every attempt, and those that are still to begin."""
        super().set()
        for running in self._running.values():
            running.stop(Stop.STOPPING)

    def cancel(self, ids: Iterable[UUID]) -> None:
        """Stop these attempts, also those that are claimed and about to begin."""
        for execution_id in ids:
            running = self._running.get(execution_id)
            if running is None:
                self._early.add(execution_id)
            else:
                running.stop(Stop.CANCELLED)

    def forget(self, held: Collection[UUID]) -> None:
        """Forget cancellations of what this process does not hold after all."""
        self._early.intersection_update(held)


def late(running: Running) -> None:
    """Stop what has reached its deadline."""
    running.stop(Stop.DEADLINE)
