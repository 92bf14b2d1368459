"""What this worker tells the fleet: the handlers it offers, and that it lives."""

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any

import structlog

from shared import presence
from shared.announce import BuiltinSkill, HandlerInfo
from shared.presence import Presence
from shared.schemas import normalise
from shared.settings import Settings
from worker import cancels
from worker.handlers import Handler
from worker.pulse import Pulse
from worker.room import Room

log = structlog.get_logger(__name__)


def offers(
    handlers: Mapping[str, Handler], settings: Settings
) -> list[tuple[HandlerInfo, BuiltinSkill | None]]:
    """Return what is announced for each handler, and the skill that a built-in brings along."""
    return [(info(handler, settings), skill(handler)) for handler in handlers.values()]


def info(handler: Handler, settings: Settings) -> HandlerInfo:
    """Return a handler's announced defaults, those that depend on settings worked out."""
    timeout = handler.timeout_ms
    return HandlerInfo(
        name=handler.name,
        version=handler.version,
        description=handler.description,
        queue=handler.queue,
        timeout_ms=timeout(settings) if callable(timeout) else timeout,
        max_timeout_ms=handler.max_timeout_ms,
        timeout_input=handler.timeout_input,
        max_retries=handler.max_retries,
        idempotent=handler.idempotent
        if isinstance(handler.idempotent, bool)
        else dict(handler.idempotent),
        retry_on_timeout=handler.retry_on_timeout,
    )


def skill(handler: Handler) -> BuiltinSkill | None:
    """Return the ``system`` skill of a built-in: its models are the schemas."""
    if not handler.builtin:
        return None
    sides = {"input": handler.input_model, "output": handler.output_model}
    modes: dict[str, Any] = {"input": "validation", "output": "serialization"}
    return BuiltinSkill(
        schema={
            side: normalise(
                model.model_json_schema(by_alias=True, mode=modes[side]) if model else {}
            )
            for side, model in sides.items()
        },
        policy=handler.policy,
        tags=handler.tags,
    )


async def beat(room: Room, pulse: Pulse) -> None:
    """Write the presence row four times a lease until cancelled."""
    every_s = room.settings.worker.lease_ms / 4000
    while True:
        try:
            async with asyncio.timeout(2 * every_s):
                await presence.beat(room.pool, me(room, pulse))
                await cancels.check(room)
        except Exception as error:
            log.warning("presence.failed", error=type(error).__name__)
        await asyncio.sleep(every_s)


def me(room: Room, pulse: Pulse | None = None) -> Presence:
    """Return this worker's presence as of now; without a pulse, before it pulls."""
    settings = room.settings
    return Presence(
        id=room.id,
        host=socket.gethostname(),
        pid=os.getpid(),
        queues=settings.worker.queues,
        handlers=tuple(sorted(room.handlers)),
        slots=settings.worker.concurrency,
        running=pulse.running if pulse else 0,
        sandbox=room.sandbox.state() if "sandbox" in settings.worker.queues else None,
        lease_ms=settings.worker.lease_ms,
        rates=pulse.rates() if pulse else {},
        consuming=pulse.consuming if pulse else True,
    )
