"""What becomes of a submit once its row is committed."""

from dataclasses import dataclass

from shared.errors import ErrorCode
from shared.models import Execution

Warnings = tuple[dict[str, str], ...]

UNRUNG: dict[str, str] = {
    "code": ErrorCode.QUEUE_UNAVAILABLE,
    "message": "The execution is committed and will run once the queue is back",
}
UNREADABLE: dict[str, str] = {
    "code": ErrorCode.UNAVAILABLE,
    "message": "The execution is committed, but the database can't be read right now; ask again",
}


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a submit: the record, whether a replay, and what the caller should know."""

    execution: Execution
    replayed: bool = False
    warnings: Warnings = ()
