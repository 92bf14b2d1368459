"""The outermost layer: a request's id, HEAD, headers for everybody, and the last resort."""

import re
import time

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from dispatcher import problems
from shared.logging import asked

log = structlog.get_logger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; whatever goes wrong inside becomes a problem document."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        reply = Reply(send, request_id(request), silent=request.method == "HEAD")
        with asked(reply.request_id):
            # HEAD is GET without the body, so it meets the same guard and answers the same headers.
            inner = {**scope, "method": "GET"} if reply.silent else scope
            began = time.perf_counter()
            try:
                await self._app(inner, receive, reply)
            except ClientDisconnect:
                log.debug("http.gone", method=request.method, path=request.scope["path"])
            except Exception:
                log.exception("http.failed", method=request.method, path=request.scope["path"])
                if not reply.status:
                    await problems.internal(request)(scope, receive, reply)
            report(request, reply.status, time.perf_counter() - began)


class Reply:
    """Sends the answer on, with the headers that every answer has."""

    def __init__(self, send: Send, request_id: str, *, silent: bool) -> None:
        self._send = send
        self.request_id = request_id
        self.silent = silent
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Send one message; a body is left out where there must be none."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            sent = {name for name, _ in message["headers"]}
            safe = (header for header in SAFE_HEADERS if header[0] not in sent)
            named = (b"x-request-id", self.request_id.encode())
            message = {**message, "headers": [*message["headers"], *safe, named]}
        elif message["type"] == "http.response.body" and self.silent:
            message = {**message, "body": b""}
        await self._send(message)


def request_id(request: Request) -> str:
    """Return the caller's X-Request-Id when it is a harmless one, else a new one."""
    sent = request.headers.get("x-request-id", "")
    return sent if REQUEST_ID.fullmatch(sent) else uuid7().hex


def report(request: Request, status: int, seconds: float) -> None:
    """Log the request: refusals where operators look, the rest only for those who debug."""
    tell = log.info if status >= 400 else log.debug
    tell(
        "http.request",
        method=request.method,
        path=request.scope["path"],
        status=status,
        ms=round(seconds * 1000, 1),
    )
