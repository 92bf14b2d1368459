"""Erasing an owner: everything of it that the fleet has."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Path
from starlette.responses import Response

from dispatcher.routing import Doors, Who, add, answer
from shared import erasures
from shared.erasures import Erasure
from shared.errors import NotFound

OWNERS, ERASURES = "/api/skills/owners/{owner:path}", "/api/skills/erasures"


def register(app: FastAPI) -> None:
    """Add the routes. All are an operator's."""
    add(
        app, "DELETE", OWNERS, erase_owner, scope="manage", answer=Erasure, status=202,
        tags=["owners"],
    )  # fmt: skip
    add(
        app, "GET", ERASURES + "/{erasure_id:uuid}", get_erasure, scope="manage",
        answer=Erasure, refuses=(404,), tags=["owners"],
    )  # fmt: skip


async def erase_owner(
    owner: Annotated[str, Path(min_length=1)], dispatcher: Doors, caller: Who
) -> Response:
    """Erase an owner: its key counts no more at once, the rest goes within seconds.

    Executions with inputs and outputs, what runs of it cancelled first; idempotency keys, skills,
    pauses, the key, the workspace. Asked again while it is under way it answers with the same.
    """
    found = await erasures.request(dispatcher.pool, owner, caller.actor)
    await dispatcher.registry.changed()
    return answer(found, 202, Location=f"{ERASURES}/{found.id}")


async def get_erasure(erasure_id: UUID, dispatcher: Doors) -> Response:
    """Return how far an erasure is."""
    found = await erasures.get(dispatcher.pool, erasure_id)
    if found is None:
        raise NotFound(f"Erasure not found: {erasure_id}")
    return answer(found)
