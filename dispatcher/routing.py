"""How a route is made: the credential first, then its scope, then the body, then the rest.

Every route says what scope it needs, in the OpenAPI document too (``x-required-scope``); one that
does not stops start-up.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, cast, get_type_hints

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.responses import Response

from dispatcher.answers import BatchRequest
from dispatcher.caller import Caller
from dispatcher.dispatcher import Dispatcher
from dispatcher.intake import holds_nul, whole
from dispatcher.problems import MEDIA_TYPE
from dispatcher.violations import from_validation
from shared.errors import BadRequest, InvalidInput, PayloadTooLarge, UnsupportedMedia
from shared.keys import SCOPES
from shared.models import Model
from shared.schemas import loads

PUBLIC = "public"
"""The scope of what anybody may ask."""

SCOPE = "x-required-scope"

OVERHEAD_BYTES = 64 * 1024
"""What a body may hold besides the input: names, schemas (64 KiB), blanks."""

BATCH_TIMES = 4
"""How many times a submit's body that of a batch may be; all of it is held in memory at once."""

MAX_MEMBERS = 256
"""Members of a body itself, far more than any has: each unknown one would be a violation."""

BODY_S = 60.0
"""How long a body may take to arrive."""

JSON = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json(?:\s*;.*)?", re.IGNORECASE)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

REFUSALS = {
    400: "The request can't be understood",
    401: "No credential, or one that does not count",
    403: "The credential lacks the scope",
    404: "There is no such thing, for this caller",
    409: "The state of things forbids it",
    413: "The body or the input is too large",
    415: "The body is not JSON",
    422: "Parts of the request are wrong; violations says which",
    429: "The key submits faster than it may; Retry-After says when to come again",
    503: "Something the request needs is away or switched off",
}


class Guarded(APIRoute):
    """A route that authenticates before it reads, and reads JSON strictly."""

    @property
    def required_scope(self) -> str | None:
        """Return the scope it declares."""
        return (self.openapi_extra or {}).get(SCOPE)

    def get_route_handler(self) -> Handler:
        """Put the guard in front of FastAPI's own handling."""
        handle = super().get_route_handler()
        scope = self.required_scope
        model = body_model(self.endpoint)
        check_scope(self.path, scope)

        async def guarded(request: Request) -> Response:
            if scope is not None and scope != PUBLIC:
                request.state.caller = await admit(request, scope)
            if model is not None:
                request = Parsed(request, await read(request, model))
            return await handle(request)

        return guarded


async def admit(request: Request, scope: str) -> Caller:
    """Return the caller; raise Unauthenticated, or Forbidden when it lacks the scope."""
    caller: Caller = await request.app.state.gate.authenticate(request.headers)
    caller.require(scope)
    return caller


class Parsed(Request):
    """A request whose body is read and validated already; it still tells of its caller's end."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Return something, so that there is a body to speak of."""
        return b"{}"

    async def json(self) -> Any:
        """Return the validated value."""
        return self._value


def add(
    app: FastAPI,
    method: str,
    path: str,
    endpoint: Callable[..., Coroutine[Any, Any, Response]],
    *,
    scope: str,
    answer: Any = None,
    status: int = 200,
    refuses: tuple[int, ...] = (),
    **documented: Any,
) -> None:
    """Add a route. ``answer`` is the model of its answer, ``refuses`` what else it may say."""
    guard = () if scope == PUBLIC else (401, 403)
    reads = (400, 413, 415) if body_model(endpoint) else ()
    statuses = sorted({*guard, *reads, *refuses, 422, 503})
    extra = {SCOPE: scope, **({} if scope == PUBLIC else {"security": [{"bearer": []}]})}
    app.router.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_model=answer,
        status_code=status,
        operation_id=endpoint.__name__,
        openapi_extra={**documented.pop("extra", {}), **extra},
        responses={
            **{code: refusal(code) for code in statuses},
            **documented.pop("responses", {}),
        },
        route_class_override=Guarded,
        **documented,
    )


def refusal(status: int) -> dict[str, Any]:
    """Return how an error answer is documented."""
    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {"description": REFUSALS[status], "content": {MEDIA_TYPE: reference}}


def check_scopes(app: FastAPI) -> None:
    """Raise RuntimeError when any route, of whatever kind, declares no known scope."""
    for route in app.router.routes:
        check_scope(getattr(route, "path", repr(route)), getattr(route, "required_scope", None))


def check_scope(path: str, scope: str | None) -> None:
    """Raise RuntimeError for a scope that is missing or unknown."""
    if scope not in (PUBLIC, *SCOPES):
        raise RuntimeError(
            f"The route {path} declares no known scope ({scope!r}). "
            f"Give it one of {', '.join((PUBLIC, *SCOPES))}"
        )


def body_model(endpoint: Callable[..., Any]) -> type[Model] | type[dict[str, Any]] | None:
    """Return what a route's body is read as: a model, a plain object, or nothing."""
    for name, hint in get_type_hints(endpoint).items():
        if name == "return":
            continue
        if isinstance(hint, type) and issubclass(hint, Model):
            return hint
        if hint == dict[str, Any]:
            return dict
    return None


async def read(request: Request, model: type[Model] | type[dict[str, Any]]) -> Any:
    """Read the body within its limit and validate it.

    Raises UnsupportedMedia, PayloadTooLarge, BadRequest or InvalidInput.
    """
    kind = request.headers.get("content-type")
    if kind is not None and not JSON.fullmatch(kind.strip()):
        raise UnsupportedMedia("The body must be JSON. Send Content-Type: application/json")
    many = model is BatchRequest
    data = await content(request, body_limit(dispatcher_of(request)) * (BATCH_TIMES if many else 1))
    value = loads(data)
    if not isinstance(value, dict):
        raise InvalidInput("The body must be a JSON object", [whole("not a JSON object")])
    if len(value) > MAX_MEMBERS:
        message = f"{len(value)} members; at most {MAX_MEMBERS} are read"
        raise InvalidInput("The body holds too many members", [whole(message)])
    # One of many must not spoil the others: theirs are looked for one by one.
    if b"\\u0000" in data and not many and holds_nul(value):
        raise InvalidInput("The request is not valid", [whole("NUL characters can't be stored")])
    if not issubclass(model, Model):
        return value
    try:
        return model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise from_validation(error) from None


async def content(request: Request, limit: int) -> bytes:
    """Return the body; raise PayloadTooLarge as soon as it is known to be above the limit.

    Raises BadRequest when it takes longer than BODY_S.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(limit)
    chunks = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                chunks += chunk
                if len(chunks) > limit:
                    raise too_large(limit)
    except TimeoutError:
        raise BadRequest(f"The body did not arrive within {BODY_S:g} seconds. Send it") from None
    return bytes(chunks)


def body_limit(dispatcher: Dispatcher) -> int:
    """Return the size limit of a body in bytes: an input may be written at twice its length."""
    return 2 * dispatcher.settings.max.input_bytes + OVERHEAD_BYTES


def too_large(limit: int) -> PayloadTooLarge:
    """Say how large a body may be."""
    return PayloadTooLarge(
        f"The body is larger than {limit} bytes (SKILLS_MAX_INPUT_BYTES rules it)"
    )


def dispatcher_of(request: Request) -> Dispatcher:
    """Return the application's dispatcher."""
    return cast("Dispatcher", request.app.state.dispatcher)


async def the_dispatcher(request: Request) -> Dispatcher:
    """Give a route the dispatcher."""
    return dispatcher_of(request)


async def the_caller(request: Request) -> Caller:
    """Give a route its authenticated caller."""
    return cast("Caller", request.state.caller)


Doors = Annotated[Dispatcher, Depends(the_dispatcher)]
Who = Annotated[Caller, Depends(the_caller)]


def answer(value: Model, status: int = 200, **headers: str) -> Response:
    """Write a model as the answer; header names are given with underscores.

    FastAPI would validate and serialise it a second time; it is ours already.
    """
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    body = value.model_dump_json(by_alias=True)
    return Response(body, status, headers=named, media_type="application/json")
