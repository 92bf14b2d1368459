"""Two small handlers to try things with; `skillfleet up` loads them (SKILLS_HANDLER_MODULES)."""

import asyncio
from typing import Any

from pydantic import BaseModel, Field

from worker.context import Context
from worker.handlers import handler


class Sleep(BaseModel):
    """What `sleep-handler` takes."""

    ms: int = Field(ge=0, le=3_600_000, description="How long to sleep, in milliseconds.")


class Slept(BaseModel):
    """What `sleep-handler` returns."""

    success: bool = True
    ms: int


@handler("echo-handler", idempotent=True, tags=("sample",))
async def echo(input: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the input as it came."""
    return input


@handler("sleep-handler", idempotent=True, tags=("sample",))
async def sleep(input: Sleep, context: Context) -> Slept:
    """Sleep for as long as asked, then say so."""
    await asyncio.sleep(input.ms / 1000)
    return Slept(ms=input.ms)
