"""What an attempt came to, before anybody decides whether it is tried again."""

import re
from typing import NamedTuple

from shared.errors import ErrorCode
from shared.logging import SECRET_TEXT
from shared.states import Status
from worker.output import storable

MESSAGE_LENGTH = 500
"""Characters of an error message that callers see; the log has the rest."""

# An absolute path that is not part of a URL: what a caller must not learn of the host.
HOST_PATH = re.compile(r"(?<![\w./:~-])/(?:[^\s/:'\"]+/)*[^\s/:'\",;)]+")


class Outcome(NamedTuple):
    """The end of one attempt. ``output`` is JSON text, also kept beside an error.

    ``retryable`` was a transient failure; ``nothing_ran`` had no effect at all; ``stopped`` was cut
    short because this worker is shutting down.
    """

    status: Status
    output: str | None = None
    error_code: ErrorCode | None = None
    error_message: str | None = None
    retryable: bool = False
    nothing_ran: bool = False
    stopped: bool = False
    retry_after_s: float | None = None


def failed(code: ErrorCode, message: str, *, output: str | None = None, **more: bool) -> Outcome:
    """Return an ``error`` outcome. A message that is not our own goes through ``public`` first."""
    return Outcome(
        status=Status.ERROR, error_code=code, error_message=cut(message), output=output, **more
    )


def public(message: str) -> str:
    """Return a message's first line without host paths, credentials or undue length."""
    lines = message.strip().splitlines() or ["Skill execution failed"]
    line = cut(lines[0].rstrip())
    return cut(SECRET_TEXT.sub("********", HOST_PATH.sub("<path>", line)))


def cut(message: str) -> str:
    """Return a message as Postgres can hold it, in MESSAGE_LENGTH characters."""
    text: str = storable(message)
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"
