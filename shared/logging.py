"""Logs: one JSON object a line, or a readable form on a terminal; secrets never.

What is bound with ``structlog.contextvars``, and the request and the attempt under way, stand on
every line, the lines of libraries included.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import structlog

from shared.settings import Settings

MASK = "********"
SECRET_NAME = re.compile(
    r"token|secret|password|passwd|api_?key$|authorization|cookie|dsn", re.IGNORECASE
)
SECRET_TEXT = re.compile(
    r"sf[km]_[A-Za-z0-9_-]{8,}|(?<=Bearer )[^\s\"',]+|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.IGNORECASE,
)
"""Our own keys and tokens, bearer tokens, and the user part of a URL."""

QUIET = ("arq", "httpx", "httpcore", "aiodocker", "asyncio", "uvicorn.access", "alembic")


REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""The id of the request under way."""

ATTEMPT: ContextVar[tuple[UUID, str, int] | None] = ContextVar("attempt", default=None)
"""The attempt under way: execution, skill, number. As bound variables they cost ten times that."""


def configure(settings: Settings, room: str) -> None:
    """Set up structlog and the standard library's loggers; ``room`` stands on each line."""
    shared = [
        structlog.contextvars.merge_contextvars,
        add_cause,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        add_room(room),
    ]
    pretty = settings.log.format == "console" or (
        settings.log.format == "auto" and sys.stderr.isatty()
    )
    renderer: list[Any] = (
        [
            # Plain traces, made before the mask: the pretty ones show the values of variables.
            structlog.processors.format_exc_info,
            mask,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ]
        if pretty
        else [
            structlog.processors.format_exc_info,
            mask,
            structlog.processors.JSONRenderer(default=str),
        ]
    )
    structlog.configure(
        processors=[*shared, mask, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelName(settings.log.level.upper())
        ),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter(), mask],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log.level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel("WARNING")


@contextmanager
def asked(request_id: str) -> Iterator[None]:
    """Have every line name the request."""
    token = REQUEST.set(request_id)
    try:
        yield
    finally:
        REQUEST.reset(token)


def add_cause(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Name the request and the attempt under way."""
    if (request_id := REQUEST.get()) is not None:
        event["request_id"] = request_id
    if (attempt := ATTEMPT.get()) is not None:
        event["execution_id"], event["skill"], event["attempt"] = str(attempt[0]), *attempt[1:]
    return event


def add_room(room: str) -> Any:
    """Return a processor that says which kind of process speaks."""

    def processor(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["room"] = room
        return event

    return processor


def mask(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values whose name, or whose text, looks like a credential, however deep."""
    for name, value in event.items():
        if not name.startswith("_"):  # the library's own, such as the record
            event[name] = masked(value, name)
    return event


def masked(value: Any, name: object = "") -> Any:
    """Return a value as it may be logged under a name."""
    if value is not None and SECRET_NAME.search(str(name)):
        return MASK
    if isinstance(value, str):
        return SECRET_TEXT.sub(MASK, value)
    if isinstance(value, Mapping):
        return {key: masked(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    if isinstance(value, BaseException):
        return SECRET_TEXT.sub(MASK, f"{type(value).__name__}: {value}")
    return value
