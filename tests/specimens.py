"""Handlers that behave and misbehave on purpose; workers of the tests load this module.

A gate writes ``start <attempt>`` to the file ``log``, waits until the file ``open`` exists, writes
``end <attempt>``: a test sees when it runs, and decides how long.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from shared.errors import ExecutionFailed, Retry
from worker.context import Context
from worker.handlers import handler

STEP_S = 0.01


@handler("echo", idempotent=True)
async def echo(input: dict[str, Any], context: Context) -> dict[str, Any]:
    return input


@handler("told")
async def told(input: dict[str, Any], context: Context) -> dict[str, Any]:
    structlog.get_logger("specimen").info("specimen.speaks", password="open sesame")
    context.log.info("specimen.speaks.too")
    return {
        "executionId": str(context.execution_id),
        "attempt": context.attempt,
        "apiKeyId": context.api_key_id,
        "caller": context.caller,
        "remainingMs": context.remaining_s() * 1000,
    }


async def passed(input: dict[str, Any], context: Context) -> dict[str, Any]:
    note(input, f"start {context.attempt}")
    while not Path(input["open"]).exists():  # noqa: ASYNC110  # the test is another process
        await asyncio.sleep(STEP_S)
    note(input, f"end {context.attempt}")
    return {"attempt": context.attempt}


def note(input: dict[str, Any], line: str) -> None:
    with Path(input["log"]).open("a") as log:
        log.write(line + "\n")


@handler("gate", idempotent=True)
async def gate(input: dict[str, Any], context: Context) -> dict[str, Any]:
    return await passed(input, context)


@handler("gate-once")
async def gate_once(input: dict[str, Any], context: Context) -> dict[str, Any]:
    return await passed(input, context)


@handler("gate-thread")
def gate_thread(input: dict[str, Any], context: Context) -> dict[str, Any]:
    note(input, f"start {context.attempt}")
    while not Path(input["open"]).exists():
        time.sleep(STEP_S)
    return {"attempt": context.attempt}


@handler("flaky", idempotent=True)
async def flaky(input: dict[str, Any], context: Context) -> dict[str, Any]:
    if context.attempt <= input["failures"]:
        raise Retry("not yet", after_s=input.get("afterS", 0))
    return {"attempt": context.attempt}


@handler("flaky-gate", idempotent=True)
async def flaky_gate(input: dict[str, Any], context: Context) -> dict[str, Any]:
    if context.attempt == 1:
        raise Retry("not yet", after_s=0)
    return await passed(input, context)


@handler("flaky-once")
async def flaky_once(input: dict[str, Any], context: Context) -> dict[str, Any]:
    raise Retry("never again", after_s=0)


@handler("dropped", idempotent=True)
async def dropped(input: dict[str, Any], context: Context) -> dict[str, Any]:
    raise ConnectionResetError("the peer went away")


@handler("nothing-ran")
async def nothing_ran(input: dict[str, Any], context: Context) -> dict[str, Any]:
    raise ExecutionFailed("not on this machine", nothing_ran=True)


@handler("exits")
def exits(input: dict[str, Any], context: Context) -> dict[str, Any]:
    sys.exit(3)


@handler("cancels-itself")
async def cancels_itself(input: dict[str, Any], context: Context) -> dict[str, Any]:
    raise asyncio.CancelledError


@handler("overflows")
async def overflows(input: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"number": 10**140_000}


@handler("sleeper", idempotent=True)
async def sleeper(input: dict[str, Any], context: Context) -> dict[str, Any]:
    await asyncio.sleep(input["s"])
    return {}
