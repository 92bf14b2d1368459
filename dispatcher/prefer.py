"""The ``Prefer`` header (RFC 7240): how long a caller of ``POST /executions`` wants to wait."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

WAIT = re.compile(r'wait\s*=\s*"?([0-9]{1,9})"?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Preference:
    """What was asked for. ``wait_s`` None leaves it to the server; ``applied`` is echoed."""

    wait_s: float | None = None
    applied: str | None = None


def preference(sent: Sequence[str]) -> Preference:
    """Read the header's lines; what is not understood is ignored, as the RFC wants it.

    ``respond-async`` does not wait, ``wait=N`` waits so many seconds; both: N, then 202.
    """
    wishes = [part.split(";")[0].strip() for line in sent for part in line.split(",")]
    for wish in wishes:
        if match := WAIT.fullmatch(wish):
            return Preference(float(match[1]), f"wait={int(match[1])}")
    if any(wish.lower() == "respond-async" for wish in wishes):
        return Preference(0.0, "respond-async")
    return Preference()
