"""Handlers whose effect can be counted afterwards: a line in a file, written in one piece."""

import asyncio
import os
from typing import Any

from shared.errors import Retry
from worker.context import Context
from worker.handlers import handler


@handler("effect", idempotent=True)
async def effect(input: dict[str, Any], context: Context) -> dict[str, Any]:
    return await noted(input, context)


@handler("effect-once")
async def effect_once(input: dict[str, Any], context: Context) -> dict[str, Any]:
    return await noted(input, context)


@handler("effect-flaky", idempotent=True)
async def effect_flaky(input: dict[str, Any], context: Context) -> dict[str, Any]:
    found = await noted(input, context)
    if context.attempt == 1:
        raise Retry("not at the first attempt", after_s=0.2)
    return found


@handler("effect-fails", idempotent=True)
async def effect_fails(input: dict[str, Any], context: Context) -> dict[str, Any]:
    await noted(input, context)
    raise ValueError("it always fails")


@handler("effect-late", idempotent=True)
async def effect_late(input: dict[str, Any], context: Context) -> dict[str, Any]:
    await noted(input, context)
    await asyncio.sleep(60)
    return {}


async def noted(input: dict[str, Any], context: Context) -> dict[str, Any]:
    """Write the execution and the attempt down, then take a while."""
    file = os.open(input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{context.execution_id} {context.attempt}\n".encode())
    finally:
        os.close(file)
    await asyncio.sleep(input["seconds"])
    return {"attempt": context.attempt}
