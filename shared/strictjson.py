"""The one loader for JSON that comes from outside.

JSON parsers disagree where the standard leaves room, and what one part checks another may read
differently. So whatever is ambiguous or can't be carried on is refused here: duplicate keys, NaN
and Infinity, numbers beyond 64 bits, lone surrogates, nesting beyond ``MAX_DEPTH``, more values
than ``MAX_VALUES``.
"""

import json
import re
from typing import Any

import orjson

from shared.errors import BadRequest, InvalidInput

MAX_DEPTH = 64
"""Nested arrays and objects, as ``tests/cases/README.md`` has it for a tool call's arguments."""

MAX_CONTAINERS = 100_000
MAX_VALUES = 300_000
"""Arrays and objects, and values of any kind, in one text."""

# Possessive, and the end may be missing: no text, however broken, is gone through twice.
STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

INTEGERS = range(-(2**63), 2**64)
"""What fits 64 bits, signed or unsigned: beyond it, parsers turn integers into other numbers."""

DIGITS = len(str(INTEGERS.start))
"""The longest run int() is given; it refuses more than 4,300 digits with a bare ValueError."""


def loads(data: bytes) -> Any:
    """Return the value that a JSON text in UTF-8 holds.

    Raises BadRequest when it is not JSON, InvalidInput when it is JSON that would be ambiguous or
    could not be carried further. Nothing else escapes, whatever the bytes.
    """
    crowded(data)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadRequest(refusal(data, error)) from None
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and not shallow(value, MAX_DEPTH):
        raise InvalidInput(f"The JSON is nested too deeply: at most {MAX_DEPTH} levels are read")
    # orjson keeps the last of two equal keys and turns long integers into floats, silently; the
    # second reading exists to notice. It takes 3 µs for a common request, 0.1 s for the largest.
    STRICT.decode(data.decode())
    return value


def crowded(data: bytes) -> None:
    """Raise InvalidInput for a text of more values than anybody should wait for.

    Two megabytes may hold a million lists; reading those, and all that is done with them later,
    would keep every other caller waiting for a second.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_CONTAINERS and data.count(b",") <= MAX_VALUES:
        return
    bare = STRINGS.sub(b"", data)  # what stands in strings does not count
    if bare.count(b"[") + bare.count(b"{") > MAX_CONTAINERS:
        raise InvalidInput(f"The JSON holds more than {MAX_CONTAINERS} arrays and objects")
    if bare.count(b",") > MAX_VALUES:
        raise InvalidInput(f"The JSON holds more than {MAX_VALUES} values")


def shallow(value: Any, levels: int) -> bool:
    """Tell whether a value nests at most so many arrays and objects; never recurses."""
    layer = [value]
    for _ in range(levels + 1):
        containers = [item for item in layer if isinstance(item, dict | list)]
        if not containers:
            return True
        layer = [
            inner
            for item in containers
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return False


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its pairs; raise InvalidInput when a key comes twice."""
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: set[str] = set()
        # `add` returns None, so a new key goes on to the next
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidInput(f"The key {twice[:100]!r} comes twice in one object. Send it once")
    return built


def whole(digits: str) -> int:
    """Read an integer; raise InvalidInput for one that 64 bits can't hold."""
    if len(digits) > DIGITS or (number := int(digits)) not in INTEGERS:
        raise InvalidInput(f"The integer {digits[:24]}… does not fit 64 bits. Send it as a string")
    return number


def refusal(data: bytes, error: orjson.JSONDecodeError) -> str:
    """Say why a text is not JSON, in the caller's terms."""
    if not data.strip():
        return "The body is empty. Send JSON"
    if "depth limit" in error.msg:
        return f"The JSON is nested too deeply: at most {MAX_DEPTH} levels are read"
    return f"The body is not valid JSON in UTF-8: {error.msg} (line {error.lineno})"


STRICT = json.JSONDecoder(object_pairs_hook=unique, parse_int=whole)
