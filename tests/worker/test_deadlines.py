import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from shared.errors import ErrorCode, ExecutionFailed, ExecutionTimedOut
from shared.states import Status
from tests.signals import until
from tests.worker.attempts import GENEROUS_S, SHORT_S, returning, run
from worker import attempt
from worker.context import Context
from worker.outcome import Outcome
from worker.stops import Stops

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
    stopping, started = Stops(), asyncio.Event()

    async def endless(input: dict[str, Any], context: Context) -> Any:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(endless, stopping=stopping))
    await started.wait()
    stopping.set()
    assert await running == Outcome(status=Status.ERROR, stopped=True)


async def test_what_was_ready_when_the_stop_came_counts() -> None:
    stopping = Stops()

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


# --- a caller that cancels -----------------------------------------------------------------------


async def cancelling(function: Any, started: asyncio.Event, **more: Any) -> Outcome:
    """Run a handler and cancel it once it has started."""
    stops, execution_id = Stops(), uuid7()
    running = asyncio.create_task(run(function, stopping=stops, execution_id=execution_id, **more))
    await started.wait()
    stops.cancel([uuid7(), execution_id])
    return await running


def is_cancelled(outcome: Outcome) -> bool:
    return (outcome.status, outcome.error_code, outcome.error_message, outcome.retryable) == (
        Status.ERROR,
        ErrorCode.CANCELLED,
        "The execution was cancelled",
        False,
    )


async def test_a_cancelled_coroutine_is_really_cancelled_and_its_output_kept() -> None:
    started, seen = asyncio.Event(), asyncio.Event()

    async def endless(input: dict[str, Any], context: Context) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.set()
            raise ExecutionFailed("cut short", output={"done": 3}) from None

    outcome = await cancelling(endless, started)
    assert is_cancelled(outcome)
    assert seen.is_set()
    assert outcome.output == '{"done":3}'


async def test_a_cancelled_thread_is_left_behind(held: threading.Event) -> None:
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    def blocked(input: dict[str, Any], context: Context) -> Any:
        loop.call_soon_threadsafe(started.set)
        held.wait()
        return {}

    assert is_cancelled(await cancelling(blocked, started))


async def test_what_is_cancelled_before_it_begins_does_not_get_far() -> None:
    stops, execution_id = Stops(), uuid7()
    stops.cancel([execution_id])

    async def endless(input: dict[str, Any], context: Context) -> Any:
        await asyncio.Event().wait()

    assert is_cancelled(await run(endless, stopping=stops, execution_id=execution_id))
    assert (await run(returning({}), stopping=stops, execution_id=execution_id)).error_code is None


async def test_an_early_cancellation_is_forgotten_with_what_is_not_held_after_all() -> None:
    stops, execution_id = Stops(), uuid7()
    stops.cancel([execution_id])
    stops.forget([uuid7()])
    assert (await run(returning({}), stopping=stops, execution_id=execution_id)).error_code is None


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
