"""The one place where an error becomes an HTTP answer: RFC 9457, with ``error`` and ``code``."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import asyncpg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from dispatcher.violations import violation
from shared.errors import (
    ErrorCode,
    Forbidden,
    InvalidInput,
    RateLimited,
    SkillfleetError,
    Unauthenticated,
    Unavailable,
    UnknownHandler,
)

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
SENTENCES = {404: "There is nothing at this path. /docs lists what there is"}
"""What is said where the framework only says the status's name."""

REALM = 'Bearer realm="skillfleet"'
RETRY_AFTER_S = 2
"""What a caller is asked to wait when a part is away; most come back within seconds or not soon."""

INTERNAL = "Something went wrong inside. The log has the details under this answer's X-Request-Id"

CODES = {
    400: ErrorCode.BAD_REQUEST,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.PAYLOAD_TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    422: ErrorCode.INVALID_INPUT,
    503: ErrorCode.UNAVAILABLE,
}
"""Codes of errors that the framework raises by status alone."""


def register(app: FastAPI) -> None:
    """Answer every error of the application with a problem document."""
    app.add_exception_handler(SkillfleetError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(asyncpg.DataError, on_unstorable)
    app.add_exception_handler(HTTPException, on_http_error)


def problem(request: Request, error: SkillfleetError) -> Response:
    """Return the answer that an error of ours means."""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Unavailable):
        log.error("http.failed", path=request.scope["path"], exc_info=error)
        return internal(request)
    return document(
        request, error.status, error.code, error.message, headers(error), details(error)
    )


def told(path: str, error: SkillfleetError) -> dict[str, Any]:
    """Return the fields of an error's problem document, for one that is part of an answer."""
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return fields(path, error.status, ErrorCode.INTERNAL, INTERNAL)
    return {**fields(path, error.status, error.code, error.message), **details(error)}


def details(error: SkillfleetError) -> dict[str, Any]:
    """Return what an error has to say beyond its message."""
    if isinstance(error, InvalidInput):
        return {"violations": list(error.violations)}
    if isinstance(error, UnknownHandler):
        return {"knownHandlers": list(error.known)}
    return {}


def fields(path: str, status: int, code: ErrorCode, message: str) -> dict[str, Any]:
    """Return what every problem document says."""
    return {
        "type": f"urn:skillfleet:problem:{code.value}",
        "title": code.value.replace("_", " ").capitalize(),
        "status": status,
        "detail": message,
        "instance": quote(path, errors="replace"),
        "error": message,
        "code": code.value,
    }


def internal(request: Request) -> Response:
    """Return the answer to a failure of ours, which says nothing about it."""
    return document(request, 500, ErrorCode.INTERNAL, INTERNAL)


def document(
    request: Request,
    status: int,
    code: ErrorCode,
    message: str,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """Write the problem document."""
    content = fields(request.scope["path"], status, code, message)
    body = to_json({**content, **(extra or {})}, inf_nan_mode="null")
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def headers(error: SkillfleetError) -> dict[str, str]:
    """Return the headers that go with an error."""
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": REALM}
    if isinstance(error, Forbidden):
        return {"WWW-Authenticate": f'{REALM}, error="insufficient_scope"'}
    if isinstance(error, RateLimited):
        return {"Retry-After": str(max(1, math.ceil(error.after_s)))}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE and error.retryable:
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}


async def on_error(request: Request, error: Exception) -> Response:
    """Answer an error of our tree."""
    return problem(request, error if isinstance(error, SkillfleetError) else unexpected(error))


async def on_invalid(request: Request, error: Exception) -> Response:
    """Answer parameters that are not as documented."""
    found = error.errors() if isinstance(error, RequestValidationError) else []
    return problem(request, InvalidInput("The request is not valid", [violation(e) for e in found]))


async def on_unstorable(request: Request, error: Exception) -> Response:
    """Answer a value that Postgres has no room for: a date far out, a NUL in a text."""
    log.info("http.unstorable", path=request.scope["path"], error=type(error).__name__)
    return problem(request, InvalidInput("A value of this request can't be stored or looked up"))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses; below /api a credential is looked at first."""
    if not isinstance(error, HTTPException):
        return problem(request, unexpected(error))
    if request.scope["path"].startswith("/api/"):
        try:
            await request.app.state.gate.authenticate(request.headers)
        except SkillfleetError as refusal:
            return problem(request, refusal)
    sent = {**(error.headers or {})}
    message = SENTENCES.get(error.status_code, error.detail)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        sent["Allow"] = allowed(request)
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=sent)
        message = f"{request.method} is not offered at this path; it takes {sent['Allow']}"
    code = CODES.get(error.status_code, ErrorCode.BAD_REQUEST)
    return document(request, error.status_code, code, message, sent)


def allowed(request: Request) -> str:
    """Return every method that the path takes; the framework names those of one route only."""
    methods = {"OPTIONS"}
    for route in request.app.router.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def unexpected(error: Exception) -> SkillfleetError:
    """Wrap what no handler was registered for."""
    wrapped = SkillfleetError(INTERNAL)
    wrapped.__cause__ = error
    return wrapped
