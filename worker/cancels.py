"""Cancellations as they reach this worker: by the channel, and by the marks on its rows."""

from contextlib import suppress
from functools import partial
from uuid import UUID

from shared import cancels
from shared.redis import CANCEL_CHANNEL, Listener
from worker.room import Room


def listen(room: Room, listener: Listener) -> None:
    """Stop what the channel names; call it before the listener starts."""
    listener.on(CANCEL_CHANNEL, partial(heard, room))


async def heard(room: Room, _: str, text: str) -> None:
    """Stop those of the named executions that this worker holds."""
    with suppress(ValueError):
        room.stopping.cancel({UUID(part) for part in text.split()} & room.held)


async def check(room: Room) -> None:
    """Stop what is marked and still runs here: its message was lost. Raises Unavailable."""
    room.stopping.cancel(await cancels.requested(room.pool, room.held, room.id))
    room.stopping.forget(room.held)
