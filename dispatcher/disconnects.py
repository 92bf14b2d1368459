"""Callers that go away while they wait, and what they asked to be cancelled then."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import structlog
from starlette.requests import ClientDisconnect, Request

from dispatcher.caller import Caller
from dispatcher.dispatcher import Dispatcher
from shared import cancels
from shared.tasks import end

log = structlog.get_logger(__name__)

T = TypeVar("T")
Committed = asyncio.Future[Sequence[UUID]]
"""Given the ids of new rows as soon as there are any."""


async def attended(
    request: Request,
    dispatcher: Dispatcher,
    caller: Caller,
    submit: Callable[[Committed], Coroutine[Any, Any, T]],
) -> T:
    """Return what ``submit`` does; when the caller goes away first, cancel its new rows.

    Raises ClientDisconnect then.
    """
    committed: Committed = asyncio.get_running_loop().create_future()
    work = asyncio.create_task(submit(committed), name="submit-attended")
    gone = asyncio.create_task(leaves(request), name="caller-attended")
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        # Nobody reads the answer, but the rows have to be there before they can be cancelled.
        either: set[asyncio.Future[Any]] = {work, committed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for execution_id in committed.result() if committed.done() else ():
            await cancels.cancel(
                dispatcher.pool, dispatcher.redis, execution_id, None, caller.actor
            )
            log.info("http.cancelled", execution_id=str(execution_id), reason="the caller went")
        raise ClientDisconnect
    finally:
        await end(work, gone)


async def leaves(request: Request) -> None:
    """Return when the caller has gone; its body is read already, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
