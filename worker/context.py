"""What a handler is given besides its input."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from shared.settings import Settings

if TYPE_CHECKING:
    from worker.sandbox.run import Sandbox
    from worker.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One attempt's surroundings. ``deadline`` is on the event loop's clock, in seconds."""

    execution_id: UUID
    attempt: int
    max_retries: int
    api_key_id: str
    caller: str
    session_id: str | None
    provider: str | None
    model: str | None
    deadline: float
    log: FilteringBoundLogger
    settings: Settings
    workspace: "Workspace"
    sandbox: "Sandbox"

    def remaining_s(self) -> float:
        """Return the seconds left until the deadline; 0.0 when it has passed."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())
