"""Lists by the page: a keyset cursor for going through, page numbers for jumping about."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import orjson
from fastapi import Depends, Query

from dispatcher.answers import Page
from shared.errors import InvalidInput

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_PAGE = 1_000_000

T = TypeVar("T")
P = TypeVar("P", bound=Page[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which part of a list was asked for."""

    limit: int
    page: int | None
    cursor: str | None
    count: bool

    @property
    def offset(self) -> int:
        """Return how many rows a page number skips."""
        return (self.page - 1) * self.limit if self.page else 0

    @property
    def fetch(self) -> int:
        """Return how many rows to read: one more than shown, to know whether there are more."""
        return self.limit + 1


async def window(
    page: Annotated[
        int | None, Query(ge=1, le=MAX_PAGE, description="Page number; also counts the total.")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, description=f"Entries a page; above {MAX_LIMIT} it is {MAX_LIMIT}.")
    ] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None, Query(max_length=1024, description="nextCursor of the page before.")
    ] = None,
    count: Annotated[bool, Query(description="Count the total.")] = False,
) -> Window:
    """Read the parameters that every list has."""
    if page is not None and cursor is not None:
        raise InvalidInput(
            "Give page or cursor, not both",
            [{"pointer": "/cursor", "message": "can't go together with page", "in": "query"}],
        )
    return Window(limit=min(limit, MAX_LIMIT), page=page, cursor=cursor, count=count)


Asked = Annotated[Window, Depends(window)]


async def page_of(
    kind: type[P],
    asked: Window,
    rows: Sequence[T],
    place: Callable[[T], Sequence[str]],
    count: Callable[[], Awaitable[int]],
) -> P:
    """Make the answer of the rows that ``asked.fetch`` brought.

    ``place`` returns what the next page begins behind; ``count`` is only asked when it must be.
    """
    shown = list(rows[: asked.limit])
    total = await count() if asked.page is not None or asked.count else None
    made = kind.model_construct(
        data=shown,
        total=total,
        page=asked.page or (None if asked.cursor else 1),
        limit=asked.limit,
        total_pages=None if total is None else -(-total // asked.limit),
        next_cursor=encode(place(shown[-1])) if len(rows) > asked.limit else None,
    )
    return cast("P", made)


def encode(place: Sequence[str]) -> str:
    """Write a cursor; callers are to take it as it is."""
    return base64.urlsafe_b64encode(orjson.dumps(list(place))).rstrip(b"=").decode()


def decode(cursor: str, *kinds: Callable[[str], Any]) -> list[Any]:
    """Read a cursor's parts with ``kinds``; raise InvalidInput for what is none of ours."""
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        parts = orjson.loads(data)
        if not isinstance(parts, list) or "\0" in "".join(parts):
            raise ValueError("not a list of texts")
        return [kind(part) for kind, part in zip(kinds, parts, strict=True)]
    except (ValueError, TypeError, binascii.Error):
        raise InvalidInput(
            "The cursor is not one of this list. Begin again without it",
            [{"pointer": "/cursor", "message": "not a cursor of this list", "in": "query"}],
        ) from None
