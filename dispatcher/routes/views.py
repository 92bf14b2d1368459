"""What operators watch: stats, queues, workers."""

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from dispatcher.routing import Doors, Who, add, answer
from shared import figures
from shared.figures import QueueFigures, Stats, WorkerFigures
from shared.models import QUEUES, Model, Text
from shared.redis import AWAY

BASE = "/api/skills"


class QueueList(Model):
    """Every queue."""

    data: list[QueueFigures]


class WorkerList(Model):
    """The workers, those that are there first; the others stay for a day."""

    data: list[WorkerFigures]


def register(app: FastAPI) -> None:
    """Add the routes."""
    add(app, "GET", f"{BASE}/stats", get_stats, scope="read:skills", answer=Stats, tags=["stats"])
    add(
        app, "GET", f"{BASE}/queues", list_queues, scope="manage", answer=QueueList, tags=["queues"]
    )
    add(
        app, "GET", f"{BASE}/workers", list_workers, scope="manage", answer=WorkerList,
        tags=["workers"],
    )  # fmt: skip


async def get_stats(
    dispatcher: Doors,
    caller: Who,
    api_key_id: Annotated[
        Text | None, Query(alias="apiKeyId", description="An owner; for management only.")
    ] = None,
) -> Response:
    """Return what waits, runs and ended lately: a key's own, or anybody's for management."""
    return answer(await figures.stats(dispatcher.pool, caller.seeing(api_key_id)))


async def list_queues(dispatcher: Doors) -> Response:
    """Return every queue: what waits, for how long, what runs, how fast it goes."""
    snapshot = await dispatcher.registry.snapshot()
    try:
        parked = {name: await dispatcher.queue.parked(name) for name in QUEUES}
    except AWAY:
        parked = None
    return answer(QueueList(data=await figures.queues(dispatcher.pool, snapshot.pauses, parked)))


async def list_workers(dispatcher: Doors) -> Response:
    """Return the workers: what they serve and offer, what they run, when they were last heard."""
    return answer(WorkerList(data=await figures.workers(dispatcher.pool)))
