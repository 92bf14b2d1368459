import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from shared.errors import ErrorCode, ExecutionFailed, Retry
from shared.schemas import compiled
from shared.states import Status
from tests.worker.attempts import raising, returning, run
from worker.context import Context
from worker.outcome import Outcome

# --- results --------------------------------------------------------------------------------------


async def test_a_handler_s_object_is_the_output() -> None:
    outcome = await run(returning({"a": [1, None, "ü"]}))
    assert outcome == Outcome(status=Status.SUCCESS, output='{"a":[1,null,"ü"]}')


class Asked(BaseModel):
    n: int = Field(ge=0)


class Given(BaseModel):
    half: float = Field(alias="halfOfIt")


async def test_models_are_validated_on_the_way_in_and_written_by_alias() -> None:
    async def half(input: Asked, context: Context) -> Given:
        return Given(halfOfIt=input.n / 2)

    assert (await run(half, {"n": 3})).output == '{"halfOfIt":1.5}'
    refused = await run(half, {"n": -1})
    assert (refused.status, refused.error_code) == (Status.ERROR, ErrorCode.INVALID_INPUT)
    assert "/n Input should be greater" in (refused.error_message or "")


@pytest.mark.parametrize("value", [None, "text", 3, ["a"], object()])
async def test_what_is_no_object_is_an_invalid_output(value: Any) -> None:
    outcome = await run(returning(value))
    assert (outcome.status, outcome.error_code) == (Status.ERROR, ErrorCode.INVALID_OUTPUT)
    assert type(value).__name__ in (outcome.error_message or "")


@pytest.mark.parametrize("value", [{"a": object()}, {"a": b"\xff"}])
async def test_what_can_not_be_written_as_json_is_an_invalid_output(value: Any) -> None:
    outcome = await run(returning(value))
    assert (outcome.error_code, outcome.output) == (ErrorCode.INVALID_OUTPUT, None)


async def test_an_output_that_misses_its_schema_is_kept_with_the_place_named() -> None:
    schema = compiled({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert (await run(returning({"n": 1}), schema=schema)).status is Status.SUCCESS
    outcome = await run(returning({"n": "one"}), schema=schema)
    assert (outcome.status, outcome.error_code) == (Status.ERROR, ErrorCode.INVALID_OUTPUT)
    assert outcome.output == '{"n":"one"}'
    assert "/n" in (outcome.error_message or "")


async def test_the_schema_judges_what_is_stored() -> None:
    schema = compiled({"type": "object", "properties": {"of": {"type": "array"}}})
    assert (await run(returning({"of": {1, 2}}), schema=schema)).status is Status.SUCCESS


async def test_a_failure_shaped_output_is_an_error_and_kept() -> None:
    outcome = await run(returning({"success": False, "error": "no\nmore"}))
    assert (outcome.status, outcome.error_code) == (Status.ERROR, ErrorCode.HANDLER_FAILED)
    assert outcome.error_message == "no"
    assert json.loads(outcome.output or "") == {"success": False, "error": "no\nmore"}
    assert not outcome.retryable


async def test_a_large_output_is_replaced_by_a_preview() -> None:
    outcome = await run(returning({"text": "x" * 5000}))
    assert (outcome.status, outcome.error_code) == (Status.ERROR, ErrorCode.OUTPUT_TOO_LARGE)
    assert "SKILLS_MAX_OUTPUT_BYTES" in (outcome.error_message or "")
    kept = json.loads(outcome.output or "")
    assert kept["truncated"] is True
    assert kept["preview"].startswith('{"text":"xxx')


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "retryable"),
    [
        (ValueError("bad thing\nTraceback …"), "ValueError: bad thing", False),
        (KeyError(), "KeyError", False),
        (OSError("/var/lib/secret is gone"), "OSError: <path> is gone", False),
        (ConnectionResetError("gone"), "ConnectionResetError: gone", True),
        (TimeoutError(), "TimeoutError", True),
        (Retry("soon", after_s=3), "soon", True),
        (ExecutionFailed("no", code=ErrorCode.FILE_NOT_FOUND), "no", False),
        (SystemExit(3), "The handler raised SystemExit", False),
        (KeyboardInterrupt(), "The handler raised KeyboardInterrupt", False),
        (GeneratorExit(), "The handler raised GeneratorExit", False),
        (asyncio.CancelledError(), "The handler was cancelled from inside", False),
        (BaseExceptionGroup("g", [SystemExit()]), "The handler raised BaseExceptionGroup", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_whatever_a_handler_raises_is_an_outcome(
    error: BaseException, message: str, retryable: bool, threaded: bool
) -> None:
    def plain(input: dict[str, Any], context: Context) -> Any:
        raise error

    outcome = await run(plain if threaded else raising(error))
    assert outcome.status is Status.ERROR
    assert (outcome.error_message, outcome.retryable) == (message, retryable)
    assert outcome.retry_after_s == getattr(error, "after_s", None)
    code = error.code if isinstance(error, ExecutionFailed) else ErrorCode.HANDLER_FAILED
    assert outcome.error_code == code


async def test_a_stop_iteration_of_a_thread_does_not_get_lost() -> None:
    def plain(input: dict[str, Any], context: Context) -> Any:
        return next(iter(()))

    assert (await run(plain)).error_message == "RuntimeError: coroutine raised StopIteration"


async def test_an_exception_without_a_text_still_ends_the_attempt() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert (await run(raising(Mute()))).error_message == "Mute"


async def test_a_deliberate_failure_keeps_its_output() -> None:
    error = ExecutionFailed("no", output={"stdout": "so far"}, nothing_ran=True)
    outcome = await run(raising(error))
    assert (outcome.output, outcome.nothing_ran) == ('{"stdout":"so far"}', True)
