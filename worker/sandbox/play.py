"""One program in one waiting container: feed it, read it, end it in time, see how it ended."""

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import structlog

from shared.errors import EngineError
from worker.sandbox.engine import NOT_FOUND, Attached, Engine
from worker.sandbox.outcome import Seen, Stop
from worker.sandbox.output import Reply
from worker.sandbox.payload import Payload, encode
from worker.sandbox.spec import Labels

GRACE_S = 0.5
"""Between SIGTERM and SIGKILL at the deadline."""

KILLED_S = 5.0
"""How long the streams may stay open after SIGKILL before we report without their end."""

SETTLE_S = 1.0
"""How long a container may take to end by itself once its ending came in-band.

A forced removal of a running one costs the engine twice the CPU.
"""

FLOOD_BYTES = 8 * 1024 * 1024
"""Bytes drained beyond the caps before the program is killed: draining costs the host CPU."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Lease:
    """One container in use: known by its name from before its creation until it is removed."""

    execution: UUID
    name: str
    labels: Labels
    stop: "asyncio.Future[Stop]"
    creating: "asyncio.Task[None] | None" = None
    ended: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: Stop) -> None:
        """Ask for an early end; the first reason stays."""
        if not self.stop.done():
            self.stop.set_result(why)


@dataclass(slots=True, eq=False)
class Reading:
    """The reading of one container's streams: ``ended`` is set once the ending came in-band."""

    reply: Reply
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False


async def play(
    engine: Engine,
    lease: Lease,
    attached: Attached,
    payload: Payload,
    reply: Reply,
    deadline: float,
) -> Seen:
    """Give the container its program; read until the ending, the deadline or a kill.

    ``deadline`` is on the loop's clock. Closes ``attached`` in every path; removing the container
    is the caller's.
    """
    reading = Reading(reply)
    reader = asyncio.create_task(read(attached, reading, lease))
    writer = asyncio.create_task(attached.write(encode(payload, reply.nonce, mtime=time.time())))
    ended = asyncio.create_task(reading.ended.wait())
    try:
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        await first_of(reader, ended, lease.stop, timeout_s=left_s)
        stop = None
        if not (ended.done() or reader.done()):
            lease.end(Stop.DEADLINE)
            stop = lease.stop.result()
            await finish_off(engine, lease, reader, ended)
        if reply.ending is not None:
            await asyncio.wait({reader}, timeout=SETTLE_S)
        reply.close()
        return await look(engine, lease, Seen(reply=reply, stop=stop, lost=reading.lost))
    finally:
        lease.ended = reader.done()
        for task in (reader, writer, ended):
            task.cancel()
        await asyncio.wait({reader, writer, ended})
        await attached.close()


async def read(attached: Attached, reading: Reading, lease: Lease) -> None:
    """Read a container's streams to their end, never stopping while it lives."""
    try:
        while (chunk := await attached.read()) is not None:
            reading.reply.feed(*chunk)
            if reading.reply.ending is not None:
                reading.ended.set()
            elif reading.reply.dropped > FLOOD_BYTES:
                lease.end(Stop.OUTPUT_LIMIT)
    except EngineError:
        reading.lost = True


async def finish_off(
    engine: Engine, lease: Lease, reader: "asyncio.Future[Any]", ended: "asyncio.Future[Any]"
) -> None:
    """Signal the container, politely first when it is the deadline; the reader goes on."""
    if lease.stop.result() is Stop.DEADLINE:
        try:
            async with asyncio.timeout(GRACE_S):
                await engine.kill(lease.name, "SIGTERM")
                await first_of(reader, ended)
                return
        except (TimeoutError, EngineError):
            pass  # no answer counts as no end: go on to the hard way
    try:
        async with asyncio.timeout(KILLED_S):
            await engine.unthrottle(lease.name)
            await engine.kill(lease.name, "SIGKILL")
            await first_of(reader)
    except (TimeoutError, EngineError) as error:
        reason = str(error) or f"no end within {KILLED_S:g} s"
        log.warning("sandbox.kill_unanswered", container=lease.name, reason=reason)


async def look(engine: Engine, lease: Lease, seen: Seen) -> Seen:
    """Ask the engine how it ended, when neither the program nor we ended it.

    The streams of a container end just the same when the engine dies.
    """
    if seen.stop or seen.lost or seen.reply.ending is not None:
        return seen
    try:
        async with asyncio.timeout(KILLED_S):
            await engine.wait(lease.name)
            found = await engine.inspect(lease.name)
    except EngineError as error:
        return replace(seen, lost=error.answer != NOT_FOUND)
    except TimeoutError:
        return replace(seen, lost=True)
    return replace(seen, state=found["State"] if found else None)


async def first_of(*futures: "asyncio.Future[Any]", timeout_s: float | None = None) -> None:
    """Wait until one of them is done or the time is up; cancels none of them."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
