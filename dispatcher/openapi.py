"""The OpenAPI document: FastAPI's, completed with what every operation shares."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dispatcher.answers import Problem

DESCRIPTION = """\
Runs skills (tool calls of language models) outside the gateway. Send a bearer token: an API key, \
or the management token. Each operation names the scope it needs in `x-required-scope`; `manage` \
has them all. Errors are problem documents (RFC 9457) with `error` and `code`.\
"""

BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key (`sfk_…`), or the management token.",
}

REFERENCE = "#/components/schemas/{model}"


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document; made once, when first asked for."""
    if app.openapi_schema is None:
        app.openapi_schema = make(app)
    return app.openapi_schema


def make(app: FastAPI) -> dict[str, Any]:
    """Make the document of an application's routes."""
    made = get_openapi(
        title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
    )
    components = made.setdefault("components", {})
    components["securitySchemes"] = {"bearer": BEARER}
    components["schemas"].update(schemas())
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
    components["responses"] = {
        "Problem": {
            "description": "An error",
            "content": {
                "application/problem+json": {"schema": {"$ref": REFERENCE.format(model="Problem")}}
            },
        }
    }
    return made


def schemas() -> dict[str, Any]:
    """Return the schema of problem documents and what it refers to."""
    schema = Problem.model_json_schema(by_alias=True, ref_template=REFERENCE)
    inner = schema.pop("$defs", {})
    return {**inner, "Problem": schema}
