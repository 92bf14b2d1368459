"""How long callers wait, and the waiting itself."""

import asyncio

CANCEL_WAIT_S = 5.0
"""How long a cancellation waits for what runs: a container's end, or a handler's tidying up."""

WAIT_EXTRA_S = 5.0
WAIT_MAX_S = 120.0
"""A caller waits for the execution's time limit and five seconds, two minutes at most."""


def default_wait(limit_ms: int) -> float:
    """Return how long a caller waits when it does not say, in seconds."""
    return min(limit_ms / 1000 + WAIT_EXTRA_S, WAIT_MAX_S)


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; tell whether it came in time."""
    if seconds <= 0:
        return False
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
