"""What the loop and those who claim for it say to each other: tickets, work, verdicts."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from shared.gates import Limit


class Verdict(Enum):
    """What else may become of an entry than being run."""

    DROP = "there is nothing to run; if there is a row, it is rung for again"
    PASS_ON = "another worker, or this one later"  # noqa: S105  # no password


class Ticket(NamedTuple):
    """An entry that was taken: its id and turn, the execution, whose it is, the skill's id."""

    entry_id: bytes
    turn: float
    execution_id: UUID
    owner: str
    skill: str


Work = Coroutine[Any, Any, UUID | None]
"""Runs one execution; the id comes back when it has ended, to be made known."""

Claim = Callable[[Sequence[Ticket]], Awaitable[Sequence[Work | Verdict]]]
"""Claims the rows of entries at once: work, or a verdict, for each."""

Limits = Callable[[Sequence[Ticket]], Awaitable[Mapping[bytes, tuple[Limit, ...]]]]
"""Says which gates entries have to pass, those that have any, by their ids."""


async def unlimited(_: Sequence[Ticket]) -> Mapping[bytes, tuple[Limit, ...]]:
    """Let everything run."""
    return {}
