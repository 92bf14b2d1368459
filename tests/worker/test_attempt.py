import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from shared.errors import ErrorCode, ExecutionFailed, ExecutionTimedOut, Retry
from shared.schemas import Validator, compiled
from shared.settings import Settings
from shared.states import Status
from tests.factories import context_of, handler_of, make_settings
from tests.signals import until
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


# --- deadlines ------------------------------------------------------------------------------------


def timed_out(outcome: Outcome) -> bool:
    return (outcome.status, outcome.error_code, outcome.error_message) == (
        Status.TIMEOUT,
        ErrorCode.TIMED_OUT,
        "Skill execution timed out",
    )


async def test_a_coroutine_is_really_cancelled_at_its_deadline() -> None:
    seen: list[str] = []

    async def endless(input: dict[str, Any], context: Context) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    assert timed_out(await run(endless, seconds=SHORT_S))
    assert seen == ["cancelled"]


async def test_a_handler_that_cleans_up_is_given_the_time() -> None:
    cleaned = asyncio.Event()

    async def tidy(input: dict[str, Any], context: Context) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    assert timed_out(await run(tidy, seconds=SHORT_S))
    assert cleaned.is_set()


async def test_a_handler_that_swallows_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt, "CANCEL_GRACE_S", SHORT_S)
    release, over = asyncio.Event(), asyncio.Event()

    async def stubborn(input: dict[str, Any], context: Context) -> Any:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        over.set()
        return {}

    assert timed_out(await run(stubborn, seconds=SHORT_S))
    assert not over.is_set()
    release.set()
    await over.wait()


async def test_a_value_returned_after_the_deadline_does_not_count() -> None:
    async def late(input: dict[str, Any], context: Context) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"too": "late"}

    assert timed_out(await run(late, seconds=SHORT_S))


@pytest.fixture
async def held() -> AsyncIterator[threading.Event]:
    """Give what a blocked thread waits for; set after the test, so that none is left."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_blocked_thread_is_abandoned_and_the_next_one_gets_another(
    held: threading.Event,
) -> None:
    threads: list[threading.Thread] = []

    def blocked(input: dict[str, Any], context: Context) -> Any:
        threads.append(threading.current_thread())
        held.wait()
        return {}

    def quick(input: dict[str, Any], context: Context) -> Any:
        threads.append(threading.current_thread())
        return {"ok": True}

    assert timed_out(await run(blocked, seconds=SHORT_S))
    assert (await run(quick)).status is Status.SUCCESS
    assert threads[0].is_alive()
    assert threads[0].daemon, "it does not keep the process from ending"
    assert threads[0] is not threads[1]


async def test_a_thread_does_not_hold_the_loop_up() -> None:
    beats = 0

    def slow(input: dict[str, Any], context: Context) -> Any:
        end = time.monotonic() + GENEROUS_S
        while beats < 10 and time.monotonic() < end:
            time.sleep(0.001)
        return {"beats": beats}

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    outcome = await run(slow)
    beating.cancel()
    assert json.loads(outcome.output or "")["beats"] >= 10


async def test_a_handler_may_hand_over_what_it_has_at_its_own_deadline() -> None:
    async def partial(input: dict[str, Any], context: Context) -> Any:
        await asyncio.sleep(context.remaining_s())
        raise ExecutionTimedOut({"stdout": "half"})

    outcome = await run(partial, seconds=SHORT_S, keeps_deadline=True)
    assert timed_out(outcome)
    assert outcome.output == '{"stdout":"half"}'


async def test_a_handler_that_does_not_keep_its_own_deadline_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt, "OWN_DEADLINE_GRACE_S", SHORT_S)

    async def forgetful(input: dict[str, Any], context: Context) -> Any:
        await asyncio.Event().wait()

    assert timed_out(await run(forgetful, seconds=SHORT_S, keeps_deadline=True))


# --- a worker that stops --------------------------------------------------------------------------


async def test_a_stop_cuts_an_attempt_short_and_says_so() -> None:
    stopping, started = asyncio.Event(), asyncio.Event()

    async def endless(input: dict[str, Any], context: Context) -> Any:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(endless, stopping=stopping))
    await started.wait()
    stopping.set()
    assert await running == Outcome(status=Status.ERROR, stopped=True)


async def test_what_was_ready_when_the_stop_came_counts() -> None:
    stopping = asyncio.Event()

    async def ready(input: dict[str, Any], context: Context) -> Any:
        stopping.set()
        return {"ok": True}

    assert (await run(ready, stopping=stopping)).status is Status.SUCCESS


async def test_the_attempt_s_own_cancellation_cancels_the_handler() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(input: dict[str, Any], context: Context) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(run(endless))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(cancelled.wait(), GENEROUS_S)


# --- plain functions ------------------------------------------------------------------------------


async def test_a_plain_function_may_return_a_coroutine() -> None:
    async def inner() -> dict[str, Any]:
        return {"ok": True}

    def wrapped(input: dict[str, Any], context: Context) -> Any:
        return inner()

    assert (await run(wrapped)).output == '{"ok":true}'


async def test_a_thread_that_outlives_its_loop_ends_in_peace(held: threading.Event) -> None:
    threads: list[threading.Thread] = []
    complaints: list[Any] = []

    def blocked(input: dict[str, Any], context: Context) -> Any:
        threads.append(threading.current_thread())
        held.wait()
        return {}

    def another_loop() -> None:
        asyncio.run(run(blocked, seconds=SHORT_S))

    before, threading.excepthook = threading.excepthook, complaints.append
    try:
        await asyncio.to_thread(another_loop)
        held.set()

        async def ended() -> bool:
            return not threads[0].is_alive()

        await until(ended, "the thread ends")
    finally:
        threading.excepthook = before
    assert complaints == []
    assert sys.exc_info() == (None, None, None)
