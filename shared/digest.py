"""The digest of a request: what an idempotency key stands for.

SHA-256 of canonical JSON (RFC 8785) over the skill's name, the version asked for and the input, so
that key order and spelling of numbers don't matter and everything else does.
"""

import hashlib
import math
from typing import Any

import rfc8785

from shared.errors import InvalidInput
from shared.schemawalk import escape

SAFE = 2**53 - 1
"""The largest integer that RFC 8785 carries: a double holds all up to here."""


def digest(skill_name: str, version_asked: str | None, input: Any) -> str:
    """Return the request's digest, 64 hex digits; ``version_asked`` is the constraint as sent.

    Raises InvalidInput, with a pointer into the input, for what canonical JSON can't carry.
    """
    request = {"skillName": skill_name, "version": version_asked, "input": input}
    try:
        text = rfc8785.dumps(request)
    except (ValueError, TypeError, RecursionError):
        # UnicodeEncodeError for keys and the int-to-text limit are ValueErrors too
        violation = fault(input)
        raise InvalidInput(
            f"An idempotency key can't stand for this input: {violation['pointer']} "
            f"{violation['message']}",
            [violation],
        ) from None
    return hashlib.sha256(text).hexdigest()


def fault(value: Any) -> dict[str, str]:
    """Find the first part of a value that canonical JSON can't carry."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        pointer, found = waiting.pop()
        if message := wrong(found):
            return {"pointer": pointer, "message": message}
        if isinstance(found, dict):
            for name, inner in found.items():
                if not isinstance(name, str) or wrong(name):
                    message = "has a key that is not a text in Unicode"
                    return {"pointer": pointer, "message": message}
                waiting.append((f"{pointer}/{escape(name)}", inner))
        elif isinstance(found, list | tuple):
            waiting.extend((f"{pointer}/{index}", inner) for index, inner in enumerate(found))
    return {"pointer": "", "message": "is nested too deeply"}


def wrong(value: Any) -> str | None:
    """Say what canonical JSON has against one value, its members left aside."""
    if isinstance(value, bool) or value is None or isinstance(value, dict | list | tuple):
        return None
    if isinstance(value, int):
        return None if -SAFE <= value <= SAFE else "is an integer beyond 2^53; send it as a string"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a finite number"
    if isinstance(value, str):
        return "holds a lone surrogate" if any("\ud800" <= c <= "\udfff" for c in value) else None
    return "is not a JSON value"
