"""A worker's composition root: makes the parts, runs the loops, stops in order."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
from uuid_utils.compat import uuid7

from shared import announce, db, leader, migrate, presence
from shared.executions import Executions
from shared.queue import Queue
from shared.redis import Listener
from shared.redis import connect as connect_redis
from shared.registry import Registry
from shared.settings import Settings
from shared.tasks import end
from shared.validators import Validators
from worker import cancels, erasure, handlers, reaper
from worker.loop import QueueWorker
from worker.offer import beat, me, offers
from worker.pulse import Pulse
from worker.room import Room
from worker.run import limits, take
from worker.sandbox.run import Sandbox

log = structlog.get_logger(__name__)

CUT_OFF_S = 15.0
"""How long attempts that were told to stop may take: a container's grace and its removal."""

SANDBOX_SWEEP_S = 5.0


async def main(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT; a second signal cuts the grace period short."""
    signals = listen()  # first: a signal that comes while we start must not kill us half-way
    async with opened(settings) as room:
        by_queue = {
            queue: QueueWorker(
                room.redis,
                queue,
                settings.sandbox.concurrency if queue == "sandbox" else settings.worker.concurrency,
                settings.worker.poll_ms / 1000,
                partial(take, room),
                worker_id=room.id,
                lease_s=settings.worker.lease_ms / 1000,
                limits=partial(limits, room),
            )
            for queue in settings.worker.queues
        }
        loops, pulse = list(by_queue.values()), Pulse(by_queue)
        tasks = [asyncio.create_task(loop.main(), name=loop.queue_name) for loop in loops]
        tasks += [
            asyncio.create_task(beat(room, pulse), name="presence"),
            asyncio.create_task(reaper.keep(room), name="upkeep"),
            asyncio.create_task(sandbox_sweep(room), name="sandbox-sweep"),
            asyncio.create_task(erasure.keep(room), name="erasures"),
        ]
        log.info(
            "worker.ready",
            worker_id=room.id,
            queues=settings.worker.queues,
            handlers=sorted(room.handlers),
        )
        try:
            stop = asyncio.ensure_future(signals.acquire())
            done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & set(tasks):
                task.result()  # a loop that ends has failed: say so and go down
            await drain(room, loops, pulse, signals)
        finally:
            await end(*tasks)


@asynccontextmanager
async def opened(settings: Settings) -> "AsyncIterator[Room]":
    """Connect, refuse an older schema, announce the handlers; leave nothing behind."""
    found = {
        name: handler
        for name, handler in handlers.load(settings).items()
        if handler.queue in settings.worker.queues
    }
    redis = connect_redis(settings)
    pool = await db.connect(settings, name="skillfleet-worker")
    worker_id = f"worker-{uuid7().hex}"
    sandbox = Sandbox(settings, worker_id)
    listener = Listener(redis)
    try:
        await migrate.require(pool)
        room = Room(
            id=worker_id,
            settings=settings,
            pool=pool,
            redis=redis,
            registry=Registry(pool, redis, listener),
            executions=Executions(pool, sorted(found)),
            queue=Queue(redis),
            validators=Validators(),
            handlers=found,
            sandbox=sandbox,
        )
        cancels.listen(room, listener)
        await listener.start()
        if await announce.announce(pool, offers(found, settings)):
            await room.registry.changed()
        if "sandbox" in settings.worker.queues:
            await sandbox.start()
        # Before the first claim: a running row of a worker without presence is taken for lost.
        await presence.beat(pool, me(room))
        try:
            yield room
        finally:
            await sandbox.close()
            await room.executions.drain()
            with suppress(*db.LOST):
                await presence.leave(pool, worker_id)
                await leader.resign(pool, worker_id)
            await listener.stop()
    finally:
        await db.close(pool)
        await redis.aclose()


async def drain(
    room: Room, loops: list[QueueWorker], pulse: Pulse, signals: asyncio.Semaphore
) -> None:
    """Take nothing new, let what runs finish within the grace period, cut off the rest."""
    log.info("worker.stopping", running=pulse.running, grace_ms=room.settings.worker.grace_ms)
    for loop in loops:
        loop.stop_picking()
    again = asyncio.ensure_future(signals.acquire())
    idle = asyncio.ensure_future(emptied(loops))
    await asyncio.wait(
        {again, idle},
        timeout=room.settings.worker.grace_ms / 1000,
        return_when=asyncio.FIRST_COMPLETED,
    )
    room.stopping.set()
    await asyncio.wait({idle}, timeout=CUT_OFF_S)
    for waiter in (again, idle):
        waiter.cancel()
    log.info("worker.stopped", left=pulse.running)


async def emptied(loops: list[QueueWorker]) -> None:
    """Return when nothing runs any more."""
    while tasks := [task for loop in loops for task in loop.tasks.values() if not task.done()]:
        await asyncio.wait(tasks)


async def sandbox_sweep(room: Room) -> None:
    """Remove what dead workers left on this worker's engine, every few seconds."""
    while "sandbox" in room.settings.worker.queues:
        try:
            rows = await presence.live(room.pool)
            await room.sandbox.sweep({room.id, *(row["id"] for row in rows)})
        except Exception as error:
            log.warning("sandbox.sweep.failed", error=type(error).__name__)
        await asyncio.sleep(SANDBOX_SWEEP_S)
    await asyncio.Event().wait()


def listen() -> asyncio.Semaphore:
    """Return what SIGTERM and SIGINT release, once a signal."""
    signals = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.release)
    return signals
