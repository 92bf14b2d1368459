"""When each job started and how often: a file that producer, workers and bench map together.

Standard library only: every peer's own interpreter reads this. A job writes into its own slot, so
that measuring adds no traffic. Times are CLOCK_MONOTONIC in seconds, the same for all processes.
"""

import mmap
import os
import struct
import time
from pathlib import Path

RECORD = struct.Struct("<dI4x")
"""Start of the first run (0.0: not yet), and the number of runs."""

VARIABLE = "SKILLFLEET_BENCH_SLOTS"


class Slots:
    """The slots of one measurement."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __len__(self) -> int:
        return len(self._map) // RECORD.size

    def stamp(self, number: int) -> None:
        """Note that a job runs now."""
        at = number * RECORD.size
        start, runs = RECORD.unpack_from(self._map, at)
        RECORD.pack_into(self._map, at, start or time.monotonic(), runs + 1)

    def starts(self, count: int) -> list[tuple[float, int]]:
        """Return start and runs of the first jobs."""
        return [RECORD.unpack_from(self._map, n * RECORD.size) for n in range(count)]

    def done(self, count: int) -> int:
        """Count the jobs that have run."""
        return sum(start > 0 for start, _ in self.starts(count))

    def close(self) -> None:
        self._map.close()


def make(path: Path, count: int) -> None:
    """Make a file of so many empty slots."""
    path.write_bytes(bytes(RECORD.size * count))


def from_environment() -> Slots:
    """Open the file that the bench names."""
    return Slots(Path(os.environ[VARIABLE]))
