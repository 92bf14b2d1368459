"""Attempts of a handler, without a worker around them."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from shared.schemas import Validator
from shared.settings import Settings
from tests.factories import context_of, handler_of, make_settings
from worker import attempt
from worker.context import Context
from worker.handlers import handler
from worker.outcome import Outcome
from worker.stops import Stops

SETTINGS = make_settings(max={"output_bytes": 5000})
GENEROUS_S = 60.0
SHORT_S = 0.05


async def run(
    function: Callable[..., Any],
    input: dict[str, Any] | None = None,
    *,
    seconds: float = GENEROUS_S,
    schema: Validator | None = None,
    stopping: Stops | None = None,
    execution_id: UUID | None = None,
    settings: Settings = SETTINGS,
    **defaults: Any,
) -> Outcome:
    """Run a function as the handler of one attempt."""
    made = handler_of(handler("specimen", **defaults)(function))
    deadline = asyncio.get_running_loop().time() + seconds
    context = context_of(settings, deadline, execution_id=execution_id or uuid7())
    return await attempt.run(made, input or {}, context, schema, stopping or Stops())


def returning(value: Any) -> Callable[..., Any]:
    async def call(input: dict[str, Any], context: Context) -> Any:
        return value

    return call


def raising(error: BaseException) -> Callable[..., Any]:
    async def call(input: dict[str, Any], context: Context) -> Any:
        raise error

    return call
