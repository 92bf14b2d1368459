"""Walks over JSON Schemas: what is in one, what its references multiply to, what a value meets.

Schemas come from outside. The validator never fetches and its patterns can't backtrack, but work
can still multiply: 40 definitions that use the next one twice are 2^40 checks. The walks here count
before the validator runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from shared.shorthand import LISTS, MAPS, SINGLES

DEFINITIONS = ("$defs", "definitions")
"""Keywords whose schemas apply only where a reference names them."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor", "$id")
IN_PLACE = ("not", "if", "then", "else")
PER_ITEM = ("items", "additionalItems", "unevaluatedItems", "contains")
PER_VALUE = ("additionalProperties", "unevaluatedProperties")

MAX_CHAIN = 200
"""Schemas inside schemas, references included, that ``expansion`` follows before it gives up."""
TOO_MANY = 2**62
"""What ``expansion`` returns when it gives up."""

Found = tuple[str, Any]


@dataclass
class Document:
    """A whole schema, with what its references can point at."""

    root: Any
    anchors: dict[str, Any] = field(default_factory=dict)
    recursive: bool = False

    def target(self, reference: object) -> Any:
        """Return what a reference inside the document names; None when nothing is there."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        fragment = unquote(reference[1:])
        if fragment and not fragment.startswith("/"):
            return self.anchors.get(fragment)
        found = self.root
        for raw in fragment.split("/")[1:]:
            found = step(found, raw.replace("~1", "/").replace("~0", "~"))
        return found


def document(schema: Any) -> Document:
    """Index a schema's anchors."""
    made = Document(schema)
    for _, inner in subschemas(schema):
        for keyword in ANCHORS:
            name = inner.get(keyword) if isinstance(inner, dict) else None
            if isinstance(name, str):
                made.anchors.setdefault(name.removeprefix("#"), inner)
    return made


def subschemas(schema: Any) -> Iterator[Found]:
    """Yield every schema in a schema, itself first, each with its JSON pointer; never recurses."""
    waiting: list[Found] = [("", schema)]
    while waiting:
        pointer, found = waiting.pop()
        yield pointer, found
        if isinstance(found, dict):
            waiting.extend((pointer + tail, inner) for tail, inner in children(found))


def children(schema: dict[str, Any]) -> Iterator[Found]:
    """Yield the schemas that stand directly in one, each with the pointer's new part."""
    for keyword in (*MAPS, "dependencies"):
        held = schema.get(keyword)
        if isinstance(held, dict):
            for name, inner in held.items():
                if isinstance(inner, dict | bool):
                    yield f"/{escape(keyword)}/{escape(name)}", inner
    for keyword in (*LISTS, *SINGLES):
        held = schema.get(keyword)
        if isinstance(held, list):
            for index, inner in enumerate(held):
                yield f"/{escape(keyword)}/{index}", inner
        elif isinstance(held, dict | bool):
            yield f"/{escape(keyword)}", held


def expansion(whole: Document) -> int:
    """Count the schemas that apply when each reference is replaced by what it names.

    A cycle is cut where it closes, and noted in ``whole.recursive``: there the validator remembers
    its verdicts, so that only explaining a failure can multiply.
    """
    known: dict[int, int] = {}
    open_now: set[int] = set()

    def count(schema: Any, depth: int) -> int:
        if not isinstance(schema, dict):
            return 1
        if id(schema) in open_now:
            whole.recursive = True
            return 1
        if id(schema) not in known:
            if depth > MAX_CHAIN:
                return TOO_MANY
            open_now.add(id(schema))
            named = ((tail.split("/")[1], held) for tail, held in children(schema))
            inner = [held for keyword, held in named if keyword not in DEFINITIONS]
            inner += [whole.target(schema[name]) for name in REFERENCES if name in schema]
            known[id(schema)] = 1 + sum(count(held, depth + 1) for held in inner)
            open_now.discard(id(schema))
        return known[id(schema)]

    return count(whole.root, 0)


def meetings(whole: Document, value: Any, limit: int) -> int | None:
    """Count how often a schema meets a part of the value; None above ``limit``.

    This is what explaining a failure costs at most, since that, unlike the verdict, visits every
    branch again.
    """
    waiting = [(whole.root, value)]
    met = 0
    while waiting:
        schema, part = waiting.pop()
        met += 1
        if isinstance(schema, dict):
            met += len(listed(schema.get("required")))  # each name may be a failure of its own
            waiting.extend(applied(whole, schema, part))
        if met + len(waiting) > limit:
            return None
    return met


def applied(whole: Document, schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a schema applies to a value: each inner schema with the part it meets."""
    for name in REFERENCES:
        if name in schema:
            yield whole.target(schema[name]), value
    for name in IN_PLACE:
        if name in schema:
            yield schema[name], value
    for name in ("allOf", "anyOf", "oneOf"):
        yield from ((inner, value) for inner in listed(schema.get(name)))
    if isinstance(value, dict):
        yield from to_object(schema, value)
    elif isinstance(value, list):
        for name in PER_ITEM:
            if isinstance(schema.get(name), dict | bool):
                yield from ((schema[name], item) for item in value)
        for name in ("prefixItems", "items"):
            yield from zip(listed(schema.get(name)), value, strict=False)


def to_object(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield what a schema applies to an object and its members."""
    for name, inner in mapped(schema.get("properties")):
        if name in value:
            yield inner, value[name]
    for _, inner in mapped(schema.get("patternProperties")):
        yield from ((inner, item) for item in value.values())
    for keyword in ("dependentSchemas", "dependencies"):
        yield from ((inner, value) for _, inner in mapped(schema.get(keyword)))
    for keyword in PER_VALUE:
        if keyword in schema:
            yield from ((schema[keyword], item) for item in value.values())
    if "propertyNames" in schema:
        yield from ((schema["propertyNames"], name) for name in value)


def step(found: Any, part: str) -> Any:
    """Go one step of a JSON pointer; None where there is nothing."""
    if isinstance(found, dict):
        return found.get(part)
    if isinstance(found, list) and part.isascii() and part.isdigit() and len(part) < 9:
        return found[int(part)] if int(part) < len(found) else None
    return None


def escape(part: str) -> str:
    """Write a name as a part of a JSON pointer."""
    return part.replace("~", "~0").replace("/", "~1")


def pointer(path: list[str | int]) -> str:
    """Write a path as a JSON pointer; the whole value is the empty text."""
    return "".join(f"/{escape(str(part))}" for part in path)


def listed(held: Any) -> list[Any]:
    """Return a keyword's list, or none."""
    return held if isinstance(held, list) else []


def mapped(held: Any) -> list[tuple[str, Any]]:
    """Return the members of a keyword's object, or none."""
    return list(held.items()) if isinstance(held, dict) else []
