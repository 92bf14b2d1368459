"""Is the process alive, can it take requests: for orchestrators and load balancers."""

import asyncio

from fastapi import FastAPI
from starlette.responses import Response

from dispatcher.answers import Health, Readiness
from dispatcher.routing import PUBLIC, Doors, add, answer
from shared import migrate
from shared.db import reaching
from shared.errors import SchemaOutdated, Unavailable

LOOK_S = 3.0
"""How long Postgres may take to answer before it counts as away."""


def register(app: FastAPI) -> None:
    """Add the routes."""
    add(app, "GET", "/healthz", healthz, scope=PUBLIC, answer=Health, tags=["health"])
    add(app, "GET", "/readyz", readyz, scope=PUBLIC, answer=Readiness, tags=["health"])


async def healthz() -> Response:
    """Say that the process serves requests."""
    return answer(Health())


async def readyz(dispatcher: Doors) -> Response:
    """Say whether executions can be committed; without Redis they can, and run later."""
    try:
        async with reaching(), asyncio.timeout(LOOK_S):
            await migrate.require(dispatcher.pool)
    except SchemaOutdated as error:
        raise Unavailable(error.message) from None
    hearing = dispatcher.listener.hearing.is_set()
    return answer(Readiness(redis="ok" if hearing else "degraded"))
