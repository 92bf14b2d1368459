"""JSON Schemas: checked once when a skill is installed, compiled once, then microseconds a value.

A schema is input from outside and is treated so: references stay inside the document and nothing
is ever fetched, patterns run on an engine that can't backtrack, and size, depth and what the
references multiply to are bounded. ``format`` is an annotation, as in draft 2020-12.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
import orjson

from shared.errors import ErrorCode, InvalidInput
from shared.schemawalk import (
    REFERENCES,
    Document,
    document,
    escape,
    expansion,
    meetings,
    pointer,
    subschemas,
)
from shared.shorthand import normalise
from shared.strictjson import loads, shallow

__all__ = ["Validator", "check_schema", "compiled", "loads", "normalise"]

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_SUBSCHEMAS = 2000
MAX_PATTERNS = 64
MAX_EXPANSION = 5000
"""Schemas that apply once references are replaced by what they name; cycles count once."""
PATTERN_BYTES = 2 * 1024 * 1024
"""The most that one compiled pattern may take."""

MAX_VIOLATIONS = 100
MAX_MESSAGE = 300

EXPLAIN_S = 0.1
"""Explaining a failure is bounded to about this: a process has one event loop for all callers."""
MEETING_S = 10e-6
BYTE_S = 5e-9
"""What one failed keyword costs, and each byte of the value it copies (measured, rounded up)."""

DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
}
DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"

Violation = dict[str, str]


@dataclass(frozen=True, slots=True)
class Validator:
    """A compiled schema."""

    engine: jsonschema_rs.Validator
    whole: Document

    def check(self, value: Any, what: str = "The input") -> None:
        """Return when the value fits the schema; raise InvalidInput with the violations otherwise.

        All violations are listed, up to MAX_VIOLATIONS. Only where listing them would take long
        (a huge value, or recursion that branches) it is the first, or none but the whole value.
        Messages name places and rules, never the value. ``what`` begins the error's sentence.
        """
        try:
            if self.engine.is_valid(value):
                return
            found = self.explain(value)
        except (ValueError, TypeError) as error:
            # nested beyond the engine's limit, lone surrogates, keys or values JSON doesn't have
            found = [{"pointer": "", "message": cut(f"not plain JSON: {first_line(error)}")}]
        raise InvalidInput(f"{what} does not fit the schema: {summary(found)}", found)

    def matches(self, value: Any) -> bool:
        """Tell whether the value fits the schema; what is not plain JSON never does."""
        try:
            return self.engine.is_valid(value)
        except (ValueError, TypeError):
            return False

    def explain(self, value: Any) -> list[Violation]:
        """List what is wrong with a value that does not fit, within EXPLAIN_S or so."""
        size = len(orjson.dumps(value))
        limit = int(EXPLAIN_S / (MEETING_S + size * BYTE_S))
        if meetings(self.whole, value, limit) is not None:
            return list(violations(self.engine.iter_errors(value)))
        if not self.whole.recursive:
            try:
                self.engine.validate(value)
            except jsonschema_rs.ValidationError as error:
                return list(violations(iter([error])))
        return [{"pointer": "", "message": "the value is too large to say where it fails"}]


def check_schema(schema: Any) -> None:
    """Return when a schema is valid and harmless; raise InvalidInput (INVALID_SCHEMA) if not."""
    compiled(schema)


def compiled(schema: Any) -> Validator:
    """Return the validator of a schema, from a cache of 512; raise as ``check_schema`` does."""
    return compile_text(canonical(schema))


@lru_cache(maxsize=512)
def compile_text(text: bytes) -> Validator:
    """Check and compile a schema that ``canonical`` wrote."""
    schema = orjson.loads(text)
    refuse(limits(schema))
    refuse(escapes(schema))
    refuse(list(violations(meta(schema.get("$schema", DEFAULT_DRAFT)).iter_errors(schema))))
    whole = document(schema)
    if expansion(whole) > MAX_EXPANSION:
        message = f"its references multiply beyond {MAX_EXPANSION} schemas"
        refuse([{"pointer": "", "message": message}])
    try:
        return Validator(engine(schema), whole)
    except jsonschema_rs.ValidationError as error:
        refuse([uncompilable(error)])
        raise
    except ValueError as error:
        refuse([{"pointer": "", "message": cut(first_line(error))}])
        raise


def canonical(schema: Any) -> bytes:
    """Write a schema as the text it is compiled from and cached by; refuse what is no schema."""
    if not isinstance(schema, dict):
        refuse([{"pointer": "", "message": "a schema must be a JSON object"}])
    if not shallow(schema, MAX_DEPTH):
        refuse([{"pointer": "", "message": f"nested deeper than {MAX_DEPTH} levels"}])
    try:
        text = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        refuse([{"pointer": "", "message": cut(f"not plain JSON: {first_line(error)}")}])
        raise
    if len(text) > MAX_BYTES:
        refuse([{"pointer": "", "message": f"{len(text)} bytes; at most {MAX_BYTES} are allowed"}])
    return text


def limits(schema: Any) -> list[Violation]:
    """List the counts that are above their limit."""
    inner = [found for _, found in subschemas(schema)]
    objects = [found for found in inner if isinstance(found, dict)]
    patterns = sum(
        ("pattern" in found) + len(found.get("patternProperties") or ()) for found in objects
    )
    counts = ((len(inner), MAX_SUBSCHEMAS, "schemas"), (patterns, MAX_PATTERNS, "patterns"))
    return [
        {"pointer": "", "message": f"{count} {what}; at most {limit} are allowed"}
        for count, limit, what in counts
        if count > limit
    ]


def escapes(schema: Any) -> list[Violation]:
    """List what leaves the document: references, ids, and drafts that are not known."""
    found = []
    for place, inner in subschemas(schema):
        if not isinstance(inner, dict):
            continue
        for keyword in (*REFERENCES, "$id"):
            value = inner.get(keyword)
            if isinstance(value, str) and not value.startswith("#"):
                message = f"{keyword} must stay inside the schema: only #… is allowed"
                found.append({"pointer": f"{place}/{escape(keyword)}", "message": message})
        draft = inner.get("$schema")
        if isinstance(draft, str) and draft.removesuffix("#") not in DRAFTS:
            message = f"unknown draft; known are {', '.join(sorted(DRAFTS))}"
            found.append({"pointer": f"{place}/$schema", "message": message})
    return found[:MAX_VIOLATIONS]


@lru_cache(maxsize=8)
def meta(draft: Any) -> jsonschema_rs.Validator:
    """Return the validator of a draft's own schema, which the library brings along."""
    known = draft if isinstance(draft, str) else DEFAULT_DRAFT
    return engine({"$schema": known, "$ref": known})


def engine(schema: Any) -> jsonschema_rs.Validator:
    """Compile a schema: nothing fetched, no backtracking, no values in messages."""
    return jsonschema_rs.validator_for(
        schema,
        offline=True,
        validate_formats=False,
        pattern_options=jsonschema_rs.RegexOptions(
            size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES
        ),
        mask="the value",
    )


def violations(errors: Iterator[jsonschema_rs.ValidationError]) -> Iterator[Violation]:
    """Yield at most MAX_VIOLATIONS different errors with their pointers."""
    seen: set[tuple[str, str]] = set()
    for error in islice(errors, 10 * MAX_VIOLATIONS):
        found = (pointer(error.instance_path), cut(error.message))
        if found not in seen and len(seen) < MAX_VIOLATIONS:
            seen.add(found)
            yield {"pointer": found[0], "message": found[1]}


def uncompilable(error: jsonschema_rs.ValidationError) -> Violation:
    """Say why a valid schema can't be compiled; patterns are the usual cause."""
    place = pointer(error.instance_path)
    if 'is not a "regex"' in error.message:
        message = (
            "this pattern can't be used: look-around, back-references, syntax errors and very "
            "large repetitions are refused"
        )
        return {"pointer": place, "message": message}
    return {"pointer": place, "message": cut(error.message)}


def refuse(found: list[Violation]) -> None:
    """Raise InvalidInput when there are violations."""
    if found:
        raise InvalidInput(
            f"The schema can't be used: {summary(found)}", found, code=ErrorCode.INVALID_SCHEMA
        )


def summary(found: list[Violation]) -> str:
    """Say the first violation, and how many more there are."""
    place = f"{found[0]['pointer']}: " if found[0]["pointer"] else ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{place}{found[0]['message']}{more}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return str(error).split("\n", 1)[0]


def cut(message: str) -> str:
    """Shorten a message in its middle: the reason stands at the end."""
    if len(message) <= MAX_MESSAGE:
        return message
    half = MAX_MESSAGE // 2
    return f"{message[: half - 1]}…{message[-half:]}"
