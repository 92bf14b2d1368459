"""The handlers that the benchmarks call, for workers of the product (SKILLS_HANDLER_MODULES)."""

import asyncio
import os
from typing import Any

from tests.bench.peers import slots
from worker.context import Context
from worker.handlers import handler

STAMPS = slots.from_environment() if slots.VARIABLE in os.environ else None


@handler("bench-noop", idempotent=True)
async def noop(input: dict[str, Any], context: Context) -> dict[str, Any]:
    if STAMPS is not None and "number" in input:
        STAMPS.stamp(input["number"])
    return {}


@handler("bench-busy", idempotent=True)
async def busy(input: dict[str, Any], context: Context) -> dict[str, Any]:
    await asyncio.sleep(input["ms"] / 1000)
    return {}
