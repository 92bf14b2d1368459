"""Group commit: what arrives while one batch is under way goes with the next.

Nothing waits when idle: the first row is flushed at once. A caller is answered after its row's
batch is committed, never before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import asyncpg

Row = TypeVar("Row")
Result = TypeVar("Result")

MAX_ROWS = 1000
"""Rows a statement: past this the research found no gain and callers wait longer."""

MAX_BYTES = 16 * 1_048_576
"""Bytes a statement, by the rows' own word: a thousand large outputs at once would not fit."""

ROW_FAULTS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""What is the fault of one row, not of the statement: its neighbours must not suffer."""


class Batcher(Generic[Row, Result]):
    """Collects rows for ``flush``, which answers with one result a row, in order.

    ``size`` tells the bytes of a row, where rows may be large.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Row]], Awaitable[Sequence[Result]]],
        size: Callable[[Row], int] = lambda _: 0,
    ) -> None:
        self._flush = flush
        self._size = size
        self._rows: list[tuple[Row, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, row: Row) -> Result:
        """Hand in a row; return its result once committed, or raise what its batch met."""
        return await self.hand_in(row)

    def hand_in(self, row: Row) -> "asyncio.Future[Result]":
        """Hand in a row; the future has what ``submit`` returns or raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._rows.append((row, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="batcher")
        return future

    async def drain(self) -> None:
        """Wait until everything handed in so far is answered."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while self._rows:
                count = self._fitting()
                taken, self._rows = self._rows[:count], self._rows[count:]
                await self._answer(taken)
        finally:
            self._running = None
            # Only a cancellation leaves rows here; nobody may wait for them for ever.
            left, self._rows = self._rows, []
            fail(left, asyncio.CancelledError())

    def _fitting(self) -> int:
        """Count the rows that go together: at least one."""
        weight = 0
        for count, (row, _) in enumerate(self._rows[:MAX_ROWS]):
            weight += self._size(row)
            if count and weight > MAX_BYTES:
                return count
        return min(len(self._rows), MAX_ROWS)

    async def _answer(self, taken: list[tuple[Row, "asyncio.Future[Result]"]]) -> None:
        try:
            results = await self._flush([row for row, _ in taken])
        except ROW_FAULTS as error:
            # One row that Postgres can't store must not fail its neighbours: halve until alone.
            if len(taken) == 1:
                fail(taken, error)
                return
            middle = len(taken) // 2
            await self._answer(taken[:middle])
            await self._answer(taken[middle:])
        except BaseException as error:
            fail(taken, error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), result in zip(taken, results, strict=True):
                if not future.done():
                    future.set_result(result)


def fail(taken: "list[tuple[Row, asyncio.Future[Result]]]", error: BaseException) -> None:
    """Give every waiting caller the error."""
    for _, future in taken:
        if not future.done():
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
