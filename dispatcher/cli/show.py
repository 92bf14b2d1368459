"""What commands print: data on stdout, as a table for people or as JSON; talk on stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 160
"""Columns when the output is not a terminal: nothing that matters gets folded."""


def console() -> Console:
    """Return the console for people: as wide as the terminal, or wide enough for a log."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def rows(found: Sequence[Mapping[str, Any]], *, as_json: bool = False) -> None:
    """Print rows of the same columns as a table or as a JSON array."""
    if as_json:
        as_text(found)
        return
    if not found:
        talk("There are none.")
        return
    table = Table(box=None, pad_edge=False)
    for name in found[0]:
        table.add_column(name, overflow="fold", no_wrap=name == "id")  # ids are there to be copied
    for row in found:
        table.add_row(*(cell(value) for value in row.values()))
    console().print(table, markup=False)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def as_text(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(to_jsonable_python(value), indent=2))


def talk(text: str) -> None:
    """Say something to the person, beside the data."""
    print(text, file=sys.stderr)
