"""Ending tasks for certain."""

import asyncio
from typing import Any

AGAIN_S = 0.5


async def end(*tasks: "asyncio.Task[Any]", again_s: float = AGAIN_S) -> None:
    """Cancel the tasks, every ``again_s``, until they are done, whatever they end with.

    Once is not enough: on Python 3.11 ``asyncio.wait_for``, with which redis-py sends, loses a
    cancellation that meets the end of what it waits for (python/cpython#86296, mended in 3.12).
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=again_s)
    await asyncio.gather(*tasks, return_exceptions=True)
