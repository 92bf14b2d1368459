"""What is wrong with a request, as pydantic reports it and as callers read it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from shared.errors import InvalidInput

MAX_VIOLATIONS = 100
"""Faults of one request that are listed: nobody reads more, and writing them takes time."""


def from_validation(error: ValidationError) -> InvalidInput:
    """Turn pydantic's report on a body into our error."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    shown = found[:MAX_VIOLATIONS]
    return InvalidInput(
        "The request is not valid", [violation({**e, "loc": ("body", *e["loc"])}) for e in shown]
    )


def violation(found: Mapping[str, Any]) -> dict[str, str]:
    """Return one entry of pydantic's report: a JSON pointer, and the part it points into."""
    place, *steps = found["loc"]
    return {"pointer": pointer(steps), "message": str(found["msg"]), "in": str(place)}


def pointer(steps: Sequence[object]) -> str:
    """Write a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
