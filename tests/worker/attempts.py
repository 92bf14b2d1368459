"""Attempts of a handler, without a worker around them."""

import asyncio
from collections.abc import Callable
from typing import Any

from shared.schemas import Validator
from shared.settings import Settings
from tests.factories import context_of, handler_of, make_settings
from worker import attempt
from worker.context import Context
from worker.handlers import handler
from worker.outcome import Outcome

SETTINGS = make_settings(max={"output_bytes": 5000})
GENEROUS_S = 60.0
SHORT_S = 0.05


async def run(
    function: Callable[..., Any],
    input: dict[str, Any] | None = None,
    *,
    seconds: float = GENEROUS_S,
    schema: Validator | None = None,
    stopping: asyncio.Event | None = None,
    settings: Settings = SETTINGS,
    **defaults: Any,
) -> Outcome:
    """Run a function as the handler of one attempt."""
    made = handler_of(handler("specimen", **defaults)(function))
    context = context_of(settings, asyncio.get_running_loop().time() + seconds)
    return await attempt.run(made, input or {}, context, schema, stopping or asyncio.Event())


def returning(value: Any) -> Callable[..., Any]:
    async def call(input: dict[str, Any], context: Context) -> Any:
        return value

    return call


def raising(error: BaseException) -> Callable[..., Any]:
    async def call(input: dict[str, Any], context: Context) -> Any:
        raise error

    return call
