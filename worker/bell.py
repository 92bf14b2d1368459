"""A bell inside the process: each ring wakes one who waits, or the next one to come."""

import asyncio
from collections import deque


class Bell:
    """Rings do not add up: one that nobody waited for is kept, a second one changes nothing."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._rung = False

    def ring(self) -> None:
        """Wake one who waits."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._rung = True

    async def wait(self, seconds: float | None) -> None:
        """Return at a ring, at the latest after so many seconds (None: whenever it rings)."""
        if self._rung:
            self._rung = False
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.ring()  # it was meant for somebody who goes on
            raise
