"""The registry as a process sees it: skills, handlers and run-time settings, one snapshot.

Three layers: this process's copy, the snapshot in Redis (TTL 60 s), Postgres. Every write raises an
epoch in Postgres and publishes it; a copy older than the newest epoch heard of is not used again.
While the subscription is down, each use asks Postgres for the epoch: slower, never wrong.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg
import msgspec
import structlog
from redis.asyncio import Redis

from shared import announce, keys, live, skills
from shared.batcher import Batcher
from shared.db import Pool, reaching
from shared.redis import (
    AWAY,
    REGISTRY,
    REGISTRY_CHANNEL,
    REGISTRY_LOCK,
    REGISTRY_LOCK_TTL_MS,
    REGISTRY_TTL_MS,
    Listener,
)
from shared.snapshot import Snapshot, build, decode, encode

log = structlog.get_logger(__name__)

FOLLOW_S = 2.0
"""How long to wait for Redis, or for another process that is loading, before loading oneself."""

POLL_S = 0.01

# Never replace a newer snapshot by an older one: two loaders may overlap a write. What begins with
# no epoch, or would stay for ever, is not ours and goes.
STORE = """
local there = redis.call('GET', KEYS[1])
local epoch = there and redis.call('PTTL', KEYS[1]) > 0 and tonumber(string.match(there, '^%d+'))
if epoch and epoch > tonumber(string.match(ARGV[1], '^%d+')) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)

EPOCH = "SELECT epoch FROM registry_epoch"
EPOCH_TEXT = re.compile(r"[0-9]{1,19}")
"""What a bigint looks like: anything else on the channel is somebody's noise."""


class Registry:
    """Answers with the newest snapshot; loads it at most once at a time, here and in the fleet."""

    def __init__(self, pool: "Pool[asyncpg.Record]", redis: Redis, listener: Listener) -> None:
        self._pool = pool
        self._redis = redis
        self._store_script = redis.register_script(STORE)
        self._delete_script = redis.register_script(DELETE)
        self._snapshot: Snapshot | None = None
        self._fresh_until = 0.0
        self._newest = 0
        self._hearing = False
        self._spell = 0
        self._trusting = False
        self._load: asyncio.Task[None] | None = None
        self._epochs: Batcher[None, int] = Batcher(self._epoch)
        listener.on(REGISTRY_CHANNEL, self._heard)
        listener.on_state(self._state)

    async def snapshot(self) -> Snapshot:
        """Return a snapshot no older than the newest write this process can know of."""
        while True:
            now = asyncio.get_running_loop().time()
            held = self._snapshot
            if not self._trusting:
                spell = self._spell
                self._newest = max(self._newest, await self.epoch())
                if held and held.epoch >= self._newest:
                    # Only if we have heard everything since before the epoch was read.
                    self._trusting = self._hearing and spell == self._spell
                    return held
            elif held and held.epoch >= self._newest and now < self._fresh_until:
                return held
            await self._flight()
            # A load that began before the newest write is not enough; what a load just brought is
            # used at least once, so that a failing Redis can't turn this into a loop. Nor can one
            # whose messages lie: Postgres has the last word.
            held = self._snapshot
            if held and (held.epoch >= self._newest or held.epoch >= await self.epoch()):
                return held

    async def epoch(self) -> int:
        """Ask Postgres for the epoch; who asks while it is being asked shares the next answer."""
        return await self._epochs.submit(None)

    async def _epoch(self, asked: Sequence[None]) -> Sequence[int]:
        async with reaching():
            return [int(await self._pool.fetchval(EPOCH))] * len(asked)

    async def changed(self) -> None:
        """Tell the whole fleet that something was written; call it after the commit."""
        epoch = await self.epoch()
        self._newest = max(self._newest, epoch)
        try:
            await self._redis.publish(REGISTRY_CHANNEL, str(epoch))
        except AWAY as error:
            # Nobody hears, and who does not hear asks Postgres.
            log.warning("registry.publish.failed", error=type(error).__name__)

    async def refresh(self) -> int:
        """Raise the epoch after edits by hand, so that everybody loads again; return it."""
        async with reaching():
            await self._pool.execute("UPDATE registry_epoch SET epoch = epoch + 1")
        await self.changed()
        return self._newest

    async def _heard(self, _: str, text: str) -> None:
        if EPOCH_TEXT.fullmatch(text):
            self._newest = max(self._newest, int(text))

    async def _state(self, hearing: bool) -> None:
        # What was published while we were deaf is gone: the next use asks Postgres once.
        self._hearing = hearing
        self._spell += 1
        self._trusting = False

    async def _flight(self) -> None:
        if self._load is None:
            self._load = asyncio.create_task(self._fetch(), name="registry-load")
        try:
            # Shielded: the load serves everybody who waits, whoever is cancelled.
            await asyncio.shield(self._load)
        finally:
            if self._load is not None and self._load.done():
                self._load = None

    async def _fetch(self) -> None:
        token = secrets.token_hex(8)
        try:
            async with asyncio.timeout(FOLLOW_S):
                if await self._turn(token):
                    return
        except AWAY as error:
            log.warning("registry.redis.away", error=type(error).__name__)
        encoded = None
        try:
            encoded = await self._read()
        finally:
            await self._share(encoded, token)

    async def _share(self, encoded: bytes | None, token: str) -> None:
        """Give the fleet what was loaded, if anything, and free the lock."""
        try:
            async with asyncio.timeout(FOLLOW_S):
                if encoded is not None:
                    await self._store_script(keys=[REGISTRY], args=[encoded, REGISTRY_TTL_MS])
                await self._delete_script(keys=[REGISTRY_LOCK], args=[token])
        except AWAY as error:
            log.debug("registry.not_shared", error=type(error).__name__)  # its TTL frees the lock

    async def _turn(self, token: str) -> bool:
        """Take what another process loads; False once the lock, and so the loading, is ours."""
        loop = asyncio.get_running_loop()
        until = loop.time() + FOLLOW_S
        while not await self._take():
            # Before Python 3.12 the client can swallow the one cancellation that a timeout sends
            # (asyncio.wait_for, python/cpython#86296): what goes round looks at the clock itself.
            if loop.time() >= until:
                raise TimeoutError("another process holds the lock and loads nothing")
            if await self._redis.set(REGISTRY_LOCK, token, nx=True, px=REGISTRY_LOCK_TTL_MS):
                # Who had the lock may have stored a snapshot since we looked.
                return await self._take(lock=token)
            if await self._redis.pttl(REGISTRY_LOCK) == -1:
                await self._redis.delete(REGISTRY_LOCK)  # no lock of ours stays for ever
            await asyncio.sleep(POLL_S)
        return True

    async def _take(self, lock: str | None = None) -> bool:
        """Use the snapshot in Redis when it is new enough; then a lock of ours is given back."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.get(REGISTRY)
        pipeline.pttl(REGISTRY)
        data, left_ms = await pipeline.execute()
        if data is None or left_ms <= 0:
            return False
        try:
            snapshot = decode(data)
            if snapshot.epoch > self._newest and snapshot.epoch > await self.epoch():
                raise ValueError("an epoch that Postgres has not reached")
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            log.warning("registry.snapshot.refused", error=type(error).__name__)
            await self._delete_script(keys=[REGISTRY], args=[data])
            return False
        if snapshot.epoch < self._newest:
            return False
        self._keep(snapshot, min(left_ms, REGISTRY_TTL_MS) / 1000)
        if lock is not None:
            await self._delete_script(keys=[REGISTRY_LOCK], args=[lock])
        return True

    async def _read(self) -> bytes:
        """Load from Postgres; return the form for Redis."""
        heard = self._newest
        snapshot, encoded = await load(self._pool)
        self._keep(snapshot, REGISTRY_TTL_MS / 1000)
        if snapshot.epoch < heard == self._newest:
            # Postgres has the last word: a backup was put back, or a message lied.
            log.warning("registry.epoch.back", heard=heard, found=snapshot.epoch)
            self._newest = snapshot.epoch
        return encoded

    def _keep(self, snapshot: Snapshot, seconds: float) -> None:
        self._snapshot = snapshot
        self._fresh_until = asyncio.get_running_loop().time() + seconds


async def load(pool: "Pool[asyncpg.Record]") -> tuple[Snapshot, bytes]:
    """Read everything at one moment; return the snapshot, and its form for Redis."""
    async with (
        reaching(),
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        epoch = await connection.fetchval(EPOCH)
        skill_rows = await connection.fetch(f"SELECT {skills.FIELDS} FROM skills")
        handler_rows = await connection.fetch(f"SELECT {', '.join(announce.FIELDS)} FROM handlers")
        settings = live.from_rows(await connection.fetch("SELECT key, value FROM settings"))
        paused = await connection.fetch("SELECT kind, name FROM pauses")
        shares = await keys.shares(connection)
    log.info(
        "registry.loaded", epoch=epoch, skills=len(skill_rows), at=datetime.now(UTC).isoformat()
    )
    snapshot = build(
        epoch,
        settings.masked(),
        [announce.from_row(row) for row in handler_rows],
        [skills.from_row(row) for row in skill_rows],
        [(row["kind"], row["name"]) for row in paused],
        shares,
    )
    return snapshot, encode(snapshot)
