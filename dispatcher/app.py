"""The dispatcher's composition root: everything the HTTP service is made of, put together here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fastapi import FastAPI

from dispatcher import express, openapi, problems
from dispatcher.auth import Gate, management_digest
from dispatcher.dispatcher import Dispatcher
from dispatcher.edge import Edge
from dispatcher.routes import (
    batches,
    cancels,
    docs,
    executions,
    health,
    operate,
    owners,
    pauses,
    skills,
    views,
)
from dispatcher.routing import check_scopes
from shared.settings import Settings

if TYPE_CHECKING:  # not every version that will do has it
    from fastapi.telemetry import TelemetryConfig

NO_TELEMETRY: "TelemetryConfig" = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""Newer versions of FastAPI measure by themselves; this house measures in one place of its own."""


def create_app(settings: Settings) -> FastAPI:
    """Build the application; its lifespan connects and disconnects.

    Raises ConfigurationError for a management token that can't be used, RuntimeError for a route
    without a scope.
    """
    management_digest(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Dispatcher.open(settings) as dispatcher:
            gate = Gate(dispatcher, settings)
            app.state.dispatcher, app.state.gate = dispatcher, gate
            try:
                yield
            finally:
                await gate.close()

    app = FastAPI(
        title="skillfleet",
        version=program_version(),
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        telemetry=NO_TELEMETRY,
    )
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]  # as FastAPI's docs
    problems.register(app)
    for routes in (
        executions, batches, cancels, views, operate, owners, pauses, skills, health, docs,
    ):  # fmt: skip
        routes.register(app)
    check_scopes(app)
    express.register(app)
    app.add_middleware(Edge)  # the last one added is the outermost
    return app


def program_version() -> str:
    """Return the version that is installed."""
    try:
        return version("skillfleet")
    except PackageNotFoundError:  # run from a checkout
        return "0"
