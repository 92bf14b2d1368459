"""The short way of a plain submit: the route's own steps, without the framework between them.

FastAPI's routing, dependencies and exit stacks take more of a submit than all the rest. A request
for ``POST /executions`` whose headers need no second look is read, authenticated and answered by
the very functions that the route is made of; any other goes the long way. So there is nothing here
that decides anything: tests send every kind of request both ways and compare the answers.
"""

import asyncpg
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher import problems
from dispatcher.routes import executions
from dispatcher.routing import Guarded, admit, dispatcher_of, read
from shared.errors import SkillfleetError
from shared.models import SubmitRequest


class Express:
    """Wraps the application; stands behind what every request goes through."""

    def __init__(self, app: ASGIApp, scope: str) -> None:
        self._app = app
        self._scope = scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a plain submit here, hand on everything else."""
        if plain(scope):
            request = Request(scope, receive, send)
            response = await self._served(request)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _served(self, request: Request) -> Response:
        try:
            caller = await admit(request, self._scope)
            return await executions.submit_execution(
                await read(request, SubmitRequest),
                request,
                dispatcher_of(request),
                caller,
                request.headers.getlist("prefer"),
            )
        except SkillfleetError as error:
            return problems.problem(request, error)
        except asyncpg.DataError as error:
            return await problems.on_unstorable(request, error)


def plain(scope: Scope) -> bool:
    """Tell whether this is a submit with nothing for the framework to validate."""
    return (
        scope["type"] == "http"
        and scope["path"] == executions.PATH
        and scope["method"] == "POST"
        and "idempotency-key" not in Headers(scope=scope)
    )


def register(app: FastAPI) -> None:
    """Put the short way in front of the routes that are there; it asks for the route's scope."""
    route = next(
        route
        for route in app.router.routes
        if isinstance(route, Guarded) and route.endpoint is executions.submit_execution
    )
    app.add_middleware(Express, scope=str(route.required_scope))
