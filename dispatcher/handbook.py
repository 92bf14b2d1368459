"""A page for people, made from the OpenAPI document: plain HTML, nothing to load but its style."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><link rel="stylesheet" href="/docs/style.css"></head><body>
<header><h1>{title} <small>{version}</small></h1><p>{description}</p>
<p><a href="/openapi.json">openapi.json</a> is this page for programs.</p></header>
"""


def page(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    info = {name: marked(str(text)) for name, text in document["info"].items()}
    parts = [HEAD.format(**info), "<nav>", *contents(document), "</nav><main>"]
    for path, method, operation in operations(document):
        parts += section(path, method, operation)
    parts.append("<h2>Models</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += model(name, schema)
    parts.append("</main></body></html>\n")
    return "\n".join(parts)


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield every operation with its path and method."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def contents(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the list of operations."""
    for path, method, operation in operations(document):
        anchor = escape(operation["operationId"])
        yield f'<a href="#{anchor}"><b>{method}</b> {escape(path)}</a>'


def section(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    """Yield one operation: what it does, takes and answers."""
    anchor = escape(operation["operationId"])
    yield f'<section id="{anchor}"><h2><b>{method}</b> {escape(path)}</h2>'
    yield f"<p>{marked(operation.get('description', ''))}</p>"
    yield f"<p>Scope: <code>{escape(operation['x-required-scope'])}</code></p>"
    rows = [parameter(found) for found in operation.get("parameters", ())]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if body:
        rows.append(("body", kind(body["schema"]), "JSON, required"))
    yield from table(("Takes", "Type", ""), rows)
    answers = [
        (code, kind(first(found)), marked(found.get("description", "")))
        for code, found in operation["responses"].items()
        if code != "default"
    ]
    yield from table(("Answers", "Type", ""), answers)
    yield "</section>"


def model(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield one model with its fields."""
    yield f'<section id="{escape(name)}"><h3>{escape(name)}</h3>'
    yield f"<p>{marked(schema.get('description', ''))}</p>"
    required = schema.get("required", ())
    rows = [
        (
            f"<code>{escape(field)}</code>" + ("" if field in required else " (optional)"),
            kind(found),
            marked(found.get("description", "")),
        )
        for field, found in schema.get("properties", {}).items()
    ]
    yield from table(("Field", "Type", ""), rows)
    yield "</section>"


def parameter(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a parameter's row."""
    name = f"<code>{escape(found['name'])}</code> in {escape(found['in'])}"
    return name, kind(found.get("schema", {})), marked(found.get("description", ""))


def table(heads: tuple[str, ...], rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a table; nothing when it would be empty."""
    if not rows:
        return
    yield "<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table>"


def kind(schema: Mapping[str, Any]) -> str:
    """Say in a few words what a schema takes; models are links."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    limits = ", ".join(f"{sign} {schema[name]}" for name, sign in LIMITS.items() if name in schema)
    words = escape(str(schema.get("format") or schema.get("type") or "any"))
    return f"{words} ({limits})" if limits else words


LIMITS = {"minimum": "≥", "maximum": "≤", "maxLength": "length ≤"}


def first(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an answer's first media type."""
    for media in answer.get("content", {}).values():
        found: Mapping[str, Any] = media.get("schema", {})
        return found
    return {}


def marked(text: str) -> str:
    """Escape a text and show its `code`."""
    pieces = escape(text, quote=False).split("`")
    return "".join(
        f"<code>{piece}</code>" if odd else piece.replace("\n\n", "<br>")
        for piece, odd in zip(pieces, [False, True] * len(pieces), strict=False)
    )
