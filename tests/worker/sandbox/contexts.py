"""A handler's context, and calls through it as an attempt makes them."""

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

from pydantic import BaseModel

from shared.settings import Settings
from worker.context import Context
from worker.sandbox.run import Sandbox
from worker.workspace import Workspace


def make_context(
    sandbox: Sandbox, settings: Settings, *, seconds: float = 30, execution_id: UUID | None = None
) -> Context:
    """Return a context whose deadline is that far away; the workspace is not used here."""
    return Context(
        execution_id=execution_id or uuid4(),
        attempt=1,
        max_retries=3,
        api_key_id="key",
        caller="rest",
        session_id=None,
        provider=None,
        model=None,
        deadline=asyncio.get_running_loop().time() + seconds,
        skill="s",
        settings=settings,
        workspace=cast("Workspace", None),
        sandbox=sandbox,
    )


def wire(output: BaseModel) -> dict[str, Any]:
    """Return an output as it goes to the caller."""
    return output.model_dump(mode="json", by_alias=True)
