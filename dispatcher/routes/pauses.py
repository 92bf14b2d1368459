"""Pausing a queue, a skill or an owner, and letting it go on."""

from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Path
from starlette.responses import Response

from dispatcher.answers import Done, Page
from dispatcher.paging import Asked, decode, page_of
from dispatcher.routing import Doors, Who, add, answer
from shared import pauses
from shared.errors import NotFound
from shared.models import Model, Queue, Text
from shared.pauses import Kind

PAUSES, QUEUES = "/api/skills/pauses", "/api/skills/queues/{name}"
TAG = "queues"


class PauseRequest(Model):
    """The body of ``POST /api/skills/pauses``."""

    kind: Kind
    name: Text


class PauseShown(PauseRequest):
    """What is paused, since when and by whom."""

    paused_at: datetime
    paused_by: str


class PausePage(Page[PauseShown]):
    """What is paused, by kind and name."""


def register(app: FastAPI) -> None:
    """Add the routes. All are an operator's."""
    add(app, "GET", PAUSES, list_pauses, scope="manage", answer=PausePage, tags=[TAG])
    add(app, "POST", PAUSES, add_pause, scope="manage", answer=Done, status=201, tags=[TAG])
    add(
        app, "DELETE", PAUSES + "/{kind}/{name:path}", remove_pause, scope="manage", answer=Done,
        refuses=(404,), tags=[TAG],
    )  # fmt: skip
    add(app, "POST", QUEUES + "/pause", pause_queue, scope="manage", answer=Done, tags=[TAG])
    add(app, "POST", QUEUES + "/resume", resume_queue, scope="manage", answer=Done, tags=[TAG])


async def list_pauses(dispatcher: Doors, asked: Asked) -> Response:
    """List what is paused, by kind and name."""
    found = await pauses.listed(dispatcher.pool)
    if asked.cursor is not None:
        behind = tuple(decode(asked.cursor, str, str))
        found = [pause for pause in found if (pause.kind, pause.name) > behind]
    rows = [
        PauseShown(kind=p.kind, name=p.name, paused_at=p.paused_at, paused_by=p.paused_by)
        for p in found[asked.offset :][: asked.fetch]
    ]

    async def count() -> int:
        return len(found)

    return answer(await page_of(PausePage, asked, rows, lambda row: [row.kind, row.name], count))


async def add_pause(asked: PauseRequest, dispatcher: Doors, caller: Who) -> Response:
    """Pause a queue, a skill (by name) or an owner: its executions wait, what runs goes on.

    In force everywhere at once; pausing what is paused changes nothing.
    """
    await pauses.pause(dispatcher.pool, asked.kind, asked.name, caller.actor)
    await dispatcher.registry.changed()
    return answer(Done(), 201)


async def remove_pause(
    kind: Kind, name: Annotated[str, Path(min_length=1)], dispatcher: Doors, caller: Who
) -> Response:
    """Let what was paused go on; its executions start within seconds."""
    if not await pauses.resume(dispatcher.pool, kind, name, caller.actor):
        raise NotFound(f"The {kind} {name} is not paused")
    await dispatcher.registry.changed()
    return answer(Done())


async def pause_queue(name: Queue, dispatcher: Doors, caller: Who) -> Response:
    """Pause a queue: nothing of it starts, what runs goes on."""
    await pauses.pause(dispatcher.pool, "queue", name, caller.actor)
    await dispatcher.registry.changed()
    return answer(Done())


async def resume_queue(name: Queue, dispatcher: Doors, caller: Who) -> Response:
    """Let a queue go on; one that is not paused stays as it is."""
    await pauses.resume(dispatcher.pool, "queue", name, caller.actor)
    await dispatcher.registry.changed()
    return answer(Done())
