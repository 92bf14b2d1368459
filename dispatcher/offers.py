"""Which handlers live workers offer, known within two seconds."""

import asyncio
from collections.abc import Sequence

import asyncpg

from shared import presence
from shared.batcher import Batcher
from shared.db import Pool, reaching
from shared.errors import ErrorCode
from shared.models import Skill

FRESH_S = 2.0


class Offers:
    """A short-lived copy of the presence rows, so that a submit need not read them."""

    def __init__(self, pool: "Pool[asyncpg.Record]") -> None:
        self._pool = pool
        self._handlers: frozenset[str] = frozenset()
        self._until = 0.0
        # Whoever asks while a read is under way shares the next one.
        self._reads: Batcher[None, frozenset[str]] = Batcher(self._read)

    async def warnings(self, skill: Skill) -> tuple[dict[str, str], ...]:
        """Return a warning when no live worker offers the skill's handler."""
        if skill.handler in self._handlers and asyncio.get_running_loop().time() < self._until:
            return ()
        if skill.handler in await self._refresh():
            return ()
        return (
            {
                "code": ErrorCode.NO_WORKER,
                "message": f"No live worker offers the handler {skill.handler}; "
                "the execution waits for one",
            },
        )

    def known(self, handler: str) -> bool:
        """Tell whether a live worker offered the handler when that was last looked at."""
        return handler in self._handlers

    async def _refresh(self) -> frozenset[str]:
        return await self._reads.submit(None)

    async def _read(self, asked: Sequence[None]) -> Sequence[frozenset[str]]:
        async with reaching():
            rows = await presence.live(self._pool)
        self._handlers = frozenset(name for row in rows for name in row["handlers"])
        self._until = asyncio.get_running_loop().time() + FRESH_S
        return [self._handlers] * len(asked)
