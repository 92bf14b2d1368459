"""A handler's output: its JSON text, its limit, and whether its shape says that it failed."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

PREVIEW_CHARS = 2000
"""Characters of an oversized output that are kept to look at."""

FAILURES = ("error", "failed", "failure")
MESSAGES = ("message", "reason", "statusText", "error")


def to_text(value: Mapping[str, Any]) -> bytes | None:
    """Return the JSON text that jsonb can hold; None when the value is not JSON at all."""
    try:
        text = to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, RecursionError):
        try:
            return to_json(storable(value), inf_nan_mode="null")
        except (PydanticSerializationError, ValueError, RecursionError):
            return None
    if b"\\u0000" in text:
        # From the text, not the value: a NUL may hide in a model or a dataclass.
        return to_json(storable(from_json(text)))
    return text


def storable(value: Any) -> Any:
    """Replace what Postgres text can't hold: NUL and lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return (
            value.replace("\0", "\N{REPLACEMENT CHARACTER}")
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
        )
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def too_large(text: bytes) -> str:
    """Return what is kept of an output above its limit: the head of its JSON text."""
    head = text[: PREVIEW_CHARS * 4].decode("utf-8", "ignore")[:PREVIEW_CHARS]
    return to_json({"truncated": True, "preview": head}).decode()


def failure_message(value: Mapping[str, Any]) -> str | None:
    """Return the message of a failure-shaped output; None for one that reads as a success.

    The shapes are upstream's: ``success: false``, a ``status`` of 400 and more, or a ``status`` or
    ``type`` that says error, failed or failure.
    """
    status = value.get("status")
    shaped = (
        value.get("success") is False
        or (isinstance(status, int | float) and not isinstance(status, bool) and status >= 400)
        or any(
            isinstance(word, str) and word.strip().lower() in FAILURES
            for word in (status, value.get("type"))
        )
    )
    if not shaped:
        return None
    texts = [
        value[name] for name in MESSAGES if isinstance(value.get(name), str) and value[name].strip()
    ]
    return str(texts[0]) if texts else "Skill execution failed"
