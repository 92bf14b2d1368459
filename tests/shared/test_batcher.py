import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from shared.batcher import MAX_BYTES, MAX_ROWS, Batcher


class Store:
    """Keeps what is flushed; the test opens the gate that each flush waits at."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.unstorable: set[int] = set()

    async def flush(self, rows: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(rows))
        await self.gate.wait()
        if self.error:
            raise self.error
        if self.unstorable & set(rows):
            raise asyncpg.DataError("invalid input")
        return [row * 10 for row in rows]


async def test_a_single_row_is_flushed_at_once_and_alone() -> None:
    store = Store()
    assert await Batcher(store.flush).submit(7) == 70
    assert store.batches == [[7]]


async def test_what_arrives_during_a_flush_goes_together_with_the_next() -> None:
    store = Store()
    store.gate.clear()
    batcher = Batcher(store.flush)
    first = asyncio.ensure_future(batcher.submit(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [asyncio.ensure_future(batcher.submit(i)) for i in range(1, 50)]
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(first, *rest) == [i * 10 for i in range(50)]
    assert store.batches == [[0], list(range(1, 50))]


async def test_a_batch_is_bounded_in_rows() -> None:
    store = Store()
    batcher = Batcher(store.flush)
    await asyncio.gather(*(batcher.submit(i) for i in range(2 * MAX_ROWS + 5)))
    assert [len(batch) for batch in store.batches] == [MAX_ROWS, MAX_ROWS, 5]


async def test_a_batch_is_bounded_in_bytes_but_never_empty() -> None:
    store = Store()
    batcher = Batcher(store.flush, size=lambda row: row)
    rows = [MAX_BYTES * 2, 1, MAX_BYTES - 1, 1, 1]
    await asyncio.gather(*(batcher.submit(row) for row in rows))
    assert store.batches == [[MAX_BYTES * 2], [1, MAX_BYTES - 1], [1, 1]]


async def test_a_row_that_can_not_be_stored_fails_alone() -> None:
    store = Store()
    store.unstorable = {3}
    batcher = Batcher(store.flush)
    results = await asyncio.gather(*(batcher.submit(i) for i in range(8)), return_exceptions=True)
    assert isinstance(results.pop(3), asyncpg.DataError)
    assert results == [0, 10, 20, 40, 50, 60, 70]


async def test_another_error_reaches_everybody_in_the_batch_and_nobody_after() -> None:
    store = Store()
    store.error = OSError("away")
    batcher = Batcher(store.flush)
    results = await asyncio.gather(*(batcher.submit(i) for i in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [OSError] * 3
    store.error = None
    assert await batcher.submit(1) == 10


async def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    store = Store()
    store.gate.clear()
    batcher = Batcher(store.flush)
    tasks = [asyncio.ensure_future(batcher.submit(i)) for i in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    store.gate.set()
    assert await tasks[0] == 0
    assert await tasks[2] == 20
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]


async def test_draining_waits_for_what_was_handed_in() -> None:
    store = Store()
    batcher = Batcher(store.flush)
    tasks = [asyncio.ensure_future(batcher.submit(i)) for i in range(MAX_ROWS + 1)]
    await asyncio.sleep(0)
    await batcher.drain()
    await asyncio.sleep(0)
    assert all(task.done() for task in tasks)


async def test_a_cancelled_flush_leaves_nobody_waiting() -> None:
    store = Store()
    store.gate.clear()
    batcher = Batcher(store.flush)
    tasks = [asyncio.ensure_future(batcher.submit(i)) for i in range(MAX_ROWS + 1)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert batcher._running is not None
    batcher._running.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}
