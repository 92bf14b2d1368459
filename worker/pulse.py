"""How a worker does at this moment: what it runs, how fast, and whether it looks at its queues."""

import time
from collections.abc import Mapping

from worker.loop import QueueWorker

WEIGHT = 0.5
"""Share of the newest reading in the rate: a few heartbeats and an old load is forgotten."""


class Pulse:
    """Reads the loops at every heartbeat."""

    def __init__(self, loops: Mapping[str, QueueWorker]) -> None:
        self._loops = loops
        self._read_at = time.monotonic()
        self._ended = {queue: loop.ended for queue, loop in loops.items()}
        self._rates: dict[str, float] = dict.fromkeys(loops, 0.0)

    @property
    def running(self) -> int:
        """Count the executions under way."""
        return sum(loop.job_counter for loop in self._loops.values())

    @property
    def consuming(self) -> bool:
        """Tell whether every loop looks at its queue, or has no slot to look for."""
        return all(loop.consuming for loop in self._loops.values())

    def rates(self) -> dict[str, float]:
        """Return the executions a second that ended of each queue, smoothed; call once a beat."""
        now = time.monotonic()
        seconds = max(now - self._read_at, 1e-3)
        self._read_at = now
        for queue, loop in self._loops.items():
            fresh = (loop.ended - self._ended[queue]) / seconds
            self._ended[queue] = loop.ended
            self._rates[queue] += WEIGHT * (fresh - self._rates[queue])
        return {queue: round(rate, 3) for queue, rate in self._rates.items()}
