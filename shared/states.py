"""The life of an execution: five states and the moves between them, in one table.

::

    pending ──▶ running ──▶ success | error | timeout
       │  ▲        │
       │  └────────┘  retry, handed back
       └──▶ error     cancelled, rejected, expired
"""

from enum import StrEnum


class Status(StrEnum):
    """What ``skill_executions.status`` may hold; the nuance is in ``error_code``."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.RUNNING, Status.ERROR}),
    Status.RUNNING: frozenset({Status.PENDING, Status.SUCCESS, Status.ERROR, Status.TIMEOUT}),
    Status.SUCCESS: frozenset(),
    Status.ERROR: frozenset(),
    Status.TIMEOUT: frozenset(),
}

TERMINAL = frozenset(status for status, onward in TRANSITIONS.items() if not onward)


def allows(before: Status, after: Status) -> bool:
    """Tell whether an execution may go from one state straight to the other."""
    return after in TRANSITIONS[before]
