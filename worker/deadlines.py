"""Deadlines of everything under way, kept by one timer of the event loop.

A timer for each would cost an attempt more than the rest of its upkeep. What ends before its time
stays in the heap until it comes up, or until those outnumber the rest.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

SWEEP_AT = 1024
"""Entries from which it is looked whether most of them are over already."""


class Timed(Protocol):
    """Something that may be over before its time is up."""

    def over(self) -> bool:
        """Tell whether it has ended."""
        ...


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Calls ``late`` with whatever is not over at its time, which is on the loop's clock."""

    def __init__(self, late: Callable[[T], None]) -> None:
        self._late = late
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0
        self._sweep_at = SWEEP_AT
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def add(self, when: float, timed: T) -> None:
        """Watch it until then."""
        self._count += 1  # two of the same time are not compared any further
        heappush(self._heap, (when, self._count, timed))
        if len(self._heap) > self._sweep_at:
            self._sweep()
        if self._timer is None or when < self._at:
            self._set(when)

    def __len__(self) -> int:
        """Return how many are kept, those included that are over."""
        return len(self._heap)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._due)

    def _due(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].over()):
            timed = heappop(heap)[2]
            if not timed.over():
                self._late(timed)
        if heap:
            self._set(heap[0][0])

    def _sweep(self) -> None:
        """Drop what is over; look again when there is twice as much as is left."""
        self._heap = [entry for entry in self._heap if not entry[2].over()]
        heapify(self._heap)
        self._sweep_at = max(SWEEP_AT, 2 * len(self._heap))
