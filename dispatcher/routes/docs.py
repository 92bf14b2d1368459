"""The interface's description: as an OpenAPI document, and as a page for people."""

from importlib.resources import files

from fastapi import FastAPI, Request
from pydantic_core import to_json
from starlette.responses import Response

from dispatcher import handbook
from dispatcher.routing import PUBLIC, add

CSP = (
    "default-src 'none'; style-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def register(app: FastAPI) -> None:
    """Add the routes."""
    for path, endpoint in (
        ("/openapi.json", openapi_document),
        ("/docs", docs_page),
        ("/docs/style.css", docs_style),
    ):
        add(app, "GET", path, endpoint, scope=PUBLIC, include_in_schema=False)


async def openapi_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(to_json(request.app.openapi()), media_type="application/json")


async def docs_page(request: Request) -> Response:
    """Return the page, made from the OpenAPI document; it loads nothing from elsewhere."""
    page = handbook.page(request.app.openapi())
    return Response(page, headers={"Content-Security-Policy": CSP}, media_type="text/html")


async def docs_style() -> Response:
    """Return the page's style sheet."""
    sheet = files("dispatcher").joinpath("static/docs.css").read_text(encoding="utf-8")
    return Response(sheet, headers={"Cache-Control": "max-age=3600"}, media_type="text/css")
