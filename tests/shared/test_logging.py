import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from io import StringIO
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
import structlog

from shared.logging import ATTEMPT, MASK, configure
from tests.factories import make_settings


class Lines(StringIO):
    """What was logged; ``terminal`` is what the stream claims to be."""

    terminal = False

    def configured(self, **log: str) -> Any:
        """Set logging up with this as the process's stderr; return a logger."""
        with patch.object(sys, "stderr", self):
            configure(make_settings(log=log), "worker")
        return structlog.get_logger("here")

    def isatty(self) -> bool:
        return self.terminal

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.getvalue().splitlines()[-1])
        return found


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield made
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def log(lines: Lines) -> Any:
    return lines.configured(format="json", level="debug")


def test_a_line_is_one_json_object_with_time_level_room_and_logger(log: Any, lines: Lines) -> None:
    log.info("something.happened", count=3, of={"a": [1]})
    line = lines.last
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "something.happened",
        "count": 3,
        "of": {"a": [1]},
        "level": "info",
        "logger": "here",
        "room": "worker",
    }


async def test_what_is_bound_stands_on_lines_of_libraries_and_tasks_and_threads_too(
    log: Any, lines: Lines
) -> None:
    execution_id = uuid4()

    async def attempt() -> None:
        ATTEMPT.set((execution_id, "echo", 2))
        with structlog.contextvars.bound_contextvars(request_id="r-1"):
            await asyncio.to_thread(logging.getLogger("lib").warning, "x %s", 1)

    await asyncio.create_task(attempt())
    named = {"execution_id": str(execution_id), "skill": "echo", "attempt": 2}
    assert lines.last.items() >= {**named, "request_id": "r-1", "event": "x 1"}.items()
    log.info("after")
    assert "execution_id" not in lines.last


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "fields",
    [
        {"password": SECRET},
        {"management_token": SECRET},
        {"apiKey": SECRET},
        {"Authorization": f"Basic {SECRET}"},
        {"headers": {"authorization": SECRET, "accept": "x"}},
        {"deep": [{"a": ({"client_secret": SECRET},)}]},
        {"url": f"postgresql://me:{SECRET}@host/db"},
        {"said": f"Authorization: Bearer {SECRET}"},
        {"key": f"sfk_{SECRET}"},
        {"error": ValueError(f"sfk_{SECRET} is wrong")},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_secret_is_masked_wherever_it_stands(
    log: Any, lines: Lines, fields: dict[str, Any]
) -> None:
    log.warning("x", **fields)
    assert SECRET not in lines.getvalue()
    assert MASK in lines.getvalue()


def test_ids_of_keys_and_absent_secrets_are_no_secrets(log: Any, lines: Lines) -> None:
    log.info("x", api_key_id="key-1", token=None)
    assert (lines.last["api_key_id"], lines.last["token"]) == ("key-1", None)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_trace_is_logged_without_the_secrets_in_it(lines: Lines, form: str) -> None:
    log = lines.configured(format=form)
    try:
        raise ValueError(f"redis://:{SECRET}@host does not answer")
    except ValueError:
        log.exception("failed")
        logging.getLogger("lib").exception("failed too")
    assert SECRET not in lines.getvalue()
    assert lines.getvalue().count("Traceback") == 2


def test_a_terminal_gets_the_readable_form_and_a_file_json(lines: Lines) -> None:
    lines.terminal = True
    lines.configured().info("hello")
    assert not lines.getvalue().startswith("{")
    lines.terminal = False
    lines.configured().info("hello")
    assert lines.last["event"] == "hello"


def test_the_level_is_kept(lines: Lines) -> None:
    lines.configured(format="json", level="warning").info("quiet")
    logging.getLogger("lib").info("quiet")
    logging.getLogger("httpx").info("quiet")
    assert lines.getvalue() == ""
