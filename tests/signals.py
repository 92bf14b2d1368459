"""Waiting in tests: for a condition, with a deadline, never for a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(probe: Callable[[], Awaitable[T]], what: str, *, deadline_s: float = 20.0) -> T:
    """Return the probe's first truthy answer; raise AssertionError at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        answer = await probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what} (last answer: {answer!r})")
        await asyncio.sleep(0.01)
