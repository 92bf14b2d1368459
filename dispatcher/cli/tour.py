"""The tour: a handful of real calls over REST, each shown with what came of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dispatcher import SyncClient
from dispatcher.cli.datadir import Credentials
from dispatcher.cli.ready import Sandbox
from shared.errors import ErrorCode, InvalidInput, SkillExists, SkillfleetError

GREETING = "Hello from skillfleet\n"
SHOWN = 60
SANDBOX_AWAY = {ErrorCode.SANDBOX_UNAVAILABLE, ErrorCode.IMAGE_UNAVAILABLE}
TIMEOUT_MS = 500
SLEEP_MS = 60_000

REVERSE_TEXT: dict[str, Any] = {
    "name": "reverse-text",
    "version": "1.0.0",
    "description": "Reverses a string",
    "schema": {
        "input": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
        "output": {"type": "object", "properties": {"reversed": {"type": "string"}}},
    },
    "handlerCode": "echo-handler",
}
"""The example of the documentation, to the letter; its handler hands the input back."""

OVERSLEEP: dict[str, Any] = {
    "name": "oversleep",
    "description": "Sleeps longer than its time limit allows",
    "schema": {
        "input": {
            "type": "object",
            "properties": {"ms": {"type": "integer"}},
            "required": ["ms"],
        }
    },
    "handlerCode": "sleep-handler",
    "timeoutMs": TIMEOUT_MS,
}


@dataclass(frozen=True, slots=True)
class Stop:
    """One row: what is called, and what is expected of the answer."""

    title: str
    skill: str
    input: dict[str, Any]
    status: str = "success"
    expects: Callable[[Any], bool] = bool
    sandbox: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one call. ``expected`` decides the tour's exit status."""

    stop: Stop
    status: str
    code: str
    duration_ms: int | None
    result: str
    expected: bool


STOPS = (
    Stop("write a file", "file_write", {"path": "tour/hello.txt", "content": GREETING}),
    Stop(
        "read it back",
        "file_read",
        {"path": "tour/hello.txt"},
        expects=lambda output: output["content"] == GREETING,
    ),
    Stop(
        "run Python in a container",
        "eval_code",
        {"language": "python", "code": "print(6*7)"},
        expects=lambda output: output["stdout"] == "42\n",
        sandbox=True,
    ),
    Stop(
        "run JavaScript in a container",
        "eval_code",
        {"language": "javascript", "code": "console.log(6*7)"},
        expects=lambda output: output["stdout"] == "42\n",
        sandbox=True,
    ),
    Stop(
        "call a custom skill",
        "reverse-text",
        {"text": "stressed"},
        expects=lambda output: output == {"text": "stressed"},
    ),
    Stop("send it a wrong input", "reverse-text", {"text": 42}, status="refused (422)"),
    Stop(
        f"let a time limit of {TIMEOUT_MS} ms pass",
        "oversleep",
        {"ms": SLEEP_MS},
        status="timeout",
        expects=lambda _: True,
    ),
)


def run(credentials: Credentials, sandbox: Sandbox, console: Console) -> bool:
    """Install the two custom skills, make every stop, print the table; tell if all was expected."""
    install(credentials)
    seen = []
    with (
        SyncClient(credentials.url, credentials.api_key) as client,
        console.status("Touring") as status,
    ):
        for stop in STOPS:
            status.update(f"Touring: {stop.title}")
            seen.append(visit(client, stop, sandbox))
    console.print(table(seen))
    if any(row.code in SANDBOX_AWAY and row.expected for row in seen):
        console.print(
            "Without a sandbox, skills that need one answer as above; all others work.",
            str(sandbox),
        )
    passed = all(row.expected for row in seen)
    verdict = "every row is as expected" if passed else "NOT every row is as expected"
    console.print(f"Tour: {verdict}.", style="green" if passed else "bold red")
    return passed


def install(credentials: Credentials) -> None:
    """Install the custom skills for the key's owner; a second tour finds them there."""
    with SyncClient(credentials.url, credentials.management_token) as client:
        for body in (REVERSE_TEXT, OVERSLEEP):
            try:
                client.install({**body, "apiKeyId": credentials.api_key_id})
            except SkillExists:
                continue


def visit(client: SyncClient, stop: Stop, sandbox: Sandbox) -> Seen:
    """Make one call and judge it; one that no worker would take is not made."""
    if stop.sandbox and not sandbox.served:
        return Seen(stop, "left out", "", None, str(sandbox), expected=True)
    began = time.monotonic()
    try:
        execution = client.submit(stop.skill, stop.input)
    except InvalidInput as error:
        shown = "; ".join(f"{v['pointer'] or '/'}: {v['message']}" for v in error.violations)
        return Seen(
            stop,
            "refused (422)",
            str(error.code),
            round((time.monotonic() - began) * 1000),
            shown,
            stop.status == "refused (422)" and bool(error.violations),
        )
    except SkillfleetError as error:
        return Seen(stop, "failed", str(error.code), None, error.message, expected=False)
    if stop.sandbox and not sandbox.runs:
        expected = execution.status == "error" and execution.error_code in SANDBOX_AWAY
    else:
        expected = execution.status == stop.status and stop.expects(execution.output)
    return Seen(
        stop,
        str(execution.status),
        execution.error_code or "",
        execution.duration_ms,
        execution.error_message or excerpt(execution.output),
        expected,
    )


def excerpt(output: Any) -> str:
    """Return what a row shows of an output."""
    if not isinstance(output, dict):
        return clipped(repr(output))
    for name in ("stdout", "content"):
        if name in output:
            return clipped(repr(output[name]))
    return clipped(", ".join(f"{key}={value!r}" for key, value in output.items()))


def clipped(text: str) -> str:
    """Shorten a text to what fits into a row."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def table(seen: list[Seen]) -> Table:
    """Return the rows as a table."""
    made = Table(title="Tour", title_justify="left")
    for name in ("What", "Skill", "Status", "Code", "Took", "Result", "As expected"):
        made.add_column(name, overflow="fold", justify="right" if name == "Took" else "left")
    for row in seen:
        colour = "green" if row.status == "success" else "yellow"
        made.add_row(
            row.stop.title,
            row.stop.skill,
            Text(row.status, style=colour if row.expected else "bold red"),
            row.code,
            "-" if row.duration_ms is None else f"{row.duration_ms} ms",
            Text(row.result),
            "yes" if row.expected else Text("NO", style="bold red"),
        )
    return made
