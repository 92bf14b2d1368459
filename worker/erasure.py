"""Erasing owners: the leading worker does it, since workers alone have the workspaces.

What an owner has running is cancelled first, and its rows go once it has ended. Killed at any
point, the next leader goes on.
"""

import asyncio
import shutil
from pathlib import Path

import structlog

from shared import cancels, erasures, leader
from shared.erasures import BATCH, Erasure
from shared.gates import OWNER
from shared.history import Filter
from shared.models import QUEUES
from shared.queue import TURNS
from shared.redis import parked_key, rate_key, running_key, share_key
from worker.room import Room
from worker.workspace import Workspace

log = structlog.get_logger(__name__)

ACTOR = "erasure"

LOOK_S = 2.0


async def keep(room: Room) -> None:
    """Look for erasures every LOOK_S until cancelled, while this worker leads."""
    failing = False
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if await leader.leads(room.pool, room.id):
                await erase(room)
            failing = False
        except Exception as error:
            if not failing:
                log.warning("erasure.failed", error=type(error).__name__, exc_info=True)
            failing = True


async def erase(room: Room) -> None:
    """Go on with every erasure that is open; one that has to wait is for the next round."""
    for erasure in await erasures.open_ones(room.pool):
        if await erased(room, erasure):
            await room.registry.changed()
            log.warning("owner.erased", owner=erasure.owner, erasure_id=str(erasure.id))


async def erased(room: Room, erasure: Erasure) -> bool:
    """Do what can be done now; tell whether nothing is left."""
    await cancels.cancel_all(room.pool, room.redis, Filter(owner=erasure.owner), ACTOR)
    if await alive(room, erasure.owner):
        return False  # its workers have been told
    while await erasures.remove(room.pool, erasure, "executions") == BATCH:
        log.debug("owner.erasing", owner=erasure.owner)
    await forget(room, erasure.owner)
    files = await asyncio.to_thread(
        emptied, Workspace(room.settings.data.dir, erasure.owner, 1).path
    )
    async with room.pool.acquire() as connection:
        await erasures.note(connection, erasure, "files", files)
    for kind in ("executionKeys", "skills", "pauses", "apiKeys"):
        await erasures.remove(room.pool, erasure, kind)
    await erasures.finish(room.pool, erasure)
    return True


async def alive(room: Room, owner: str) -> bool:
    """Tell whether the owner has executions that have not ended."""
    return bool(
        await room.pool.fetchval(
            "SELECT EXISTS (SELECT FROM skill_executions WHERE ended IS NULL AND api_key_id = $1)",
            owner,
        )
    )


async def forget(room: Room, owner: str) -> None:
    """Remove what Redis has of the owner; raises redis errors while it is away."""
    gate = OWNER + owner
    pipeline = room.redis.pipeline(transaction=False)
    pipeline.unlink(rate_key(owner), running_key(gate))
    for queue in QUEUES:
        pipeline.unlink(f"{parked_key(queue)}:{gate}")
        pipeline.srem(f"{parked_key(queue)}:gates", gate)
        pipeline.hdel(share_key(queue), *(f"{turns} {owner}" for turns in TURNS.values()))
    await pipeline.execute()


def emptied(folder: Path) -> int:
    """Remove a workspace; return how many files it had."""
    if not folder.is_dir() or folder.is_symlink():
        return 0
    count = sum(path.is_file() or path.is_symlink() for path in folder.rglob("*"))
    shutil.rmtree(folder)
    return count
