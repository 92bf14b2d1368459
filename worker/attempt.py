"""One handler under one deadline. The only place that makes an Outcome."""

import asyncio
import inspect
import threading
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from shared.errors import ErrorCode, ExecutionFailed, ExecutionTimedOut, InvalidInput, Retry
from shared.executions import CANCELLED
from shared.schemas import Validator
from shared.states import Status
from worker.context import Context
from worker.handlers import Handler
from worker.outcome import Outcome, failed, public
from worker.output import failure_message, to_text, too_large
from worker.stops import Running, Stop, Stops

log = structlog.get_logger(__name__)

CANCEL_GRACE_S = 1.0
"""How long a cancelled handler may clean up before it is abandoned."""

OWN_DEADLINE_GRACE_S = 10.0
"""How much later a handler that keeps its own deadline is cut off: it has to stop a container."""

UNWRITABLE = "The handler's output can't be written as JSON"

TRANSIENT = (ConnectionError, TimeoutError)
"""Failures of a handler that a second try may not meet."""


async def run(
    handler: Handler,
    input: dict[str, Any],
    context: Context,
    output_schema: Validator | None,
    stops: Stops,
) -> Outcome:
    """Run the handler and say what came of it; raises nothing but the end of this worker itself."""
    try:
        argument = validated(handler, input)
        value = await bounded(handler, argument, context, stops)
        return judged(value, output_schema, context.settings.max.output_bytes)
    except Unfit as error:
        return failed(ErrorCode.INVALID_INPUT, str(error))
    except Stopped as stop:
        return stopped(stop, context.settings.max.output_bytes)
    except ExecutionTimedOut as error:
        return timed_out(error, context.settings.max.output_bytes)
    except ExecutionFailed as error:
        return refused(error, context.settings.max.output_bytes)
    except TRANSIENT as error:
        log.warning("attempt.transient", exc_info=True)
        return failed(ErrorCode.HANDLER_FAILED, public(named(error)), retryable=True)
    except Exception as error:
        log.warning("attempt.failed", exc_info=True)
        return failed(ErrorCode.HANDLER_FAILED, public(named(error)))


class Stopped(Exception):
    """The attempt was cut short; ``left`` is what the handler raised on its way out."""

    def __init__(self, why: Stop, left: BaseException | None) -> None:
        super().__init__(why)
        self.why = why
        self.left = left


class Unfit(Exception):
    """The handler's own model refuses the input."""


def validated(handler: Handler, input: dict[str, Any]) -> Any:
    """Return the handler's argument: its model where it has one."""
    if handler.input_model is None:
        return input
    try:
        return handler.input_model.model_validate(input)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"/{part}" for part in first["loc"])
        raise Unfit(f"The handler refuses the input: {where} {public(first['msg'])}") from None


async def bounded(handler: Handler, argument: Any, context: Context, stops: Stops) -> Any:
    """Return the handler's value; raise Stopped when it had to be cut short."""
    # One task and one future an attempt: thousands of them begin and end in a second.
    work = asyncio.create_task(called(handler, argument, context))
    running = Running(work)
    grace_s = OWN_DEADLINE_GRACE_S if handler.keeps_deadline else 0.0
    stops.begin(context.execution_id, running, context.deadline + grace_s)
    try:
        why = await running.ended
        if why is None or work.done():  # by itself, in the same turn of the loop
            return finished(work)
        raise Stopped(why, await halted(work, context, why))
    finally:
        stops.end(context.execution_id)
        work.cancel()


def finished(work: "asyncio.Future[Any]") -> Any:
    """Return what the handler returned, or raise what it raised."""
    if work.cancelled():  # not by us: whoever cancels an attempt does not come here
        raise ExecutionFailed("The handler was cancelled from inside")
    return work.result()


async def halted(work: "asyncio.Future[Any]", context: Context, why: Stop) -> BaseException | None:
    """End a handler that is to be stopped; return what it raised, None if it had to be left."""
    if why is Stop.CANCELLED and await context.sandbox.kill(context.execution_id):
        # Its container is gone, so it ends by itself, with what the program had printed.
        await asyncio.wait({work}, timeout=OWN_DEADLINE_GRACE_S)
    return await cancelled(work)


async def cancelled(work: "asyncio.Future[Any]") -> BaseException | None:
    """Cancel a handler and give it its grace; return what it raised, None if it had to be left."""
    work.cancel()
    await asyncio.wait({work}, timeout=CANCEL_GRACE_S)
    if not work.done():
        log.error("attempt.abandoned", reason="the handler ignores its cancellation")
        work.add_done_callback(lambda left: left.cancelled() or left.exception())
        return None
    return None if work.cancelled() else work.exception()


async def called(handler: Handler, argument: Any, context: Context) -> Any:
    """Call the handler: a coroutine here, a plain function in a thread of its own."""
    try:
        if inspect.iscoroutinefunction(handler.call):
            return await handler.call(argument, context)
        value = await threaded(handler, argument, context)
        # A plain function around a coroutine, such as a decorator makes one.
        return await value if inspect.isawaitable(value) else value
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        # SystemExit and its like would end the worker.
        raise ExecutionFailed(f"The handler raised {type(error).__name__}") from error


async def threaded(handler: Handler, argument: Any, context: Context) -> Any:
    """Run a plain function in a daemon thread; a cancelled one is left behind, never joined."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((value, error))

    def body() -> None:
        value, error = None, None
        try:
            value = handler.call(argument, context)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("attempt.thread.late")

    threading.Thread(
        target=copy_context().run, args=(body,), name=f"handler-{handler.name}", daemon=True
    ).start()
    value, error = await future
    if error is not None:
        raise error
    return value


def judged(value: Any, output_schema: Validator | None, limit: int) -> Outcome:
    """Turn what the handler returned into success or, by its shape, failure."""
    if isinstance(value, BaseModel):
        try:
            value = value.model_dump(mode="json", by_alias=True)
        except PydanticSerializationError:
            return failed(ErrorCode.INVALID_OUTPUT, UNWRITABLE)
    if not isinstance(value, Mapping):
        return failed(
            ErrorCode.INVALID_OUTPUT, f"The handler returned {type(value).__name__}, not an object"
        )
    text = to_text(value)
    if text is None:
        return failed(ErrorCode.INVALID_OUTPUT, UNWRITABLE)
    if len(text) > limit:
        return failed(
            ErrorCode.OUTPUT_TOO_LARGE,
            f"The output is {len(text)} bytes, the limit is {limit} (SKILLS_MAX_OUTPUT_BYTES)",
            output=too_large(text),
        )
    message = failure_message(value)
    if message is not None:
        return failed(ErrorCode.HANDLER_FAILED, public(message), output=text.decode())
    if output_schema is not None:
        try:
            output_schema.check(from_json(text))  # what is stored, not what it was made from
        except InvalidInput as error:
            first = (
                error.violations[0]
                if error.violations
                else {"pointer": "", "message": error.message}
            )
            return failed(
                ErrorCode.INVALID_OUTPUT,
                "The output does not fit the skill's schema: "
                f"{first['pointer']} {first['message']}",
                output=text.decode(),
            )
    return Outcome(status=Status.SUCCESS, output=text.decode())


def stopped(stop: Stopped, limit: int) -> Outcome:
    """Turn an attempt that was cut short into an outcome; what it had so far is kept."""
    left = stop.left if isinstance(stop.left, ExecutionFailed) else None
    match stop.why:
        case Stop.STOPPING:
            return Outcome(status=Status.ERROR, stopped=True)
        case Stop.CANCELLED:
            output = left.output if left else None
            return failed(ErrorCode.CANCELLED, CANCELLED, output=kept(output, limit))
        case Stop.DEADLINE:
            error = left if isinstance(left, ExecutionTimedOut) else ExecutionTimedOut()
            return timed_out(error, limit)


def timed_out(error: ExecutionTimedOut, limit: int) -> Outcome:
    """Return the outcome of an attempt that reached its deadline."""
    return Outcome(
        status=Status.TIMEOUT,
        error_code=ErrorCode.TIMED_OUT,
        error_message=error.message,
        output=kept(error.output, limit),
    )


def refused(error: ExecutionFailed, limit: int) -> Outcome:
    """Turn a handler's deliberate failure into an outcome, its output kept."""
    if error.__cause__ is not None:
        log.info("attempt.refused", code=error.code, exc_info=error.__cause__)
    outcome = failed(
        error.code,
        public(error.message),
        output=kept(error.output, limit),
        retryable=error.retryable,
        nothing_ran=error.nothing_ran,
    )
    if isinstance(error, Retry):
        return outcome._replace(retry_after_s=error.after_s)
    return outcome


def kept(output: Mapping[str, Any] | None, limit: int) -> str | None:
    """Return a failure's output as JSON text, cut to a preview above the limit."""
    if output is None:
        return None
    text = to_text(output)
    if text is None:
        return None
    return text.decode() if len(text) <= limit else too_large(text)


def named(error: Exception) -> str:
    """Return a foreign exception's text, led by its type."""
    try:
        text = str(error)
    except Exception:  # its own __str__ fails, and must not take the attempt's end with it
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
