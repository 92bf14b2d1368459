"""What a handler is given besides its input."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import structlog
from structlog.typing import FilteringBoundLogger

from shared.settings import Settings

if TYPE_CHECKING:
    from worker.sandbox.run import Sandbox
    from worker.workspace import Workspace


class Context(NamedTuple):
    """One attempt's surroundings. ``deadline`` is on the event loop's clock, in seconds."""

    execution_id: UUID
    skill: str
    attempt: int
    max_retries: int
    api_key_id: str
    caller: str
    session_id: str | None
    provider: str | None
    model: str | None
    deadline: float
    settings: Settings
    workspace: "Workspace"
    sandbox: "Sandbox"

    @property
    def log(self) -> FilteringBoundLogger:
        """Return a logger that names the skill and, as every log of an attempt, the execution."""
        made: FilteringBoundLogger = structlog.get_logger("skill").bind(skill=self.skill)
        return made  # made when asked for: most attempts log nothing

    def remaining_s(self) -> float:
        """Return the seconds left until the deadline; 0.0 when it has passed."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())
