"""What tests are made of: settings, rows, skills, pools and a worker's room, with defaults."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import asyncpg
from redis.asyncio import Redis
from uuid_utils.compat import uuid7

from shared import db, settings, skills
from shared.events import publish_finished
from shared.executions import Claim, Executions, NewExecution
from shared.models import Skill, SkillInstall
from shared.redis import Listener
from shared.redis import connect as connect_redis
from shared.registry import Registry
from shared.settings import Settings
from shared.states import Status
from shared.tasks import end
from worker.context import Context
from worker.handlers import MARK, Handler
from worker.loop import QueueWorker
from worker.main import emptied, opened
from worker.room import Room
from worker.run import limits, take
from worker.sandbox.run import Sandbox
from worker.ticket import Ticket, Verdict
from worker.workspace import Workspace

SPECIMENS = "tests.specimens"

MANY_ROWS = """
INSERT INTO skill_executions (id, skill_id, skill_name, skill_version, handler, api_key_id, caller,
       input, max_retries, idempotent, retry_on_timeout, queue, priority, status, attempt)
SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - n), 12, '0')
        || '7000800000' || lpad(to_hex(n), 10, '0'))::uuid,
       $1, 's', '1.0.0', 'echo', 'key-' || n % 100, 'rest', '{}', 0, false, false, 'direct',
       'normal', CASE WHEN n % 300 = 0 THEN 'error' ELSE 'success' END, 1
  FROM generate_series(1, 30000) AS n
"""
"""Thirty thousand executions that have ended, of one skill ($1)."""


def make_settings(
    database_url: str = "postgresql://nowhere/none",
    redis_url: str = "redis://nowhere/0",
    **groups: dict[str, Any],
) -> Settings:
    """Return settings for these services; ``groups`` are overrides (``worker={"grace_ms": 0}``)."""
    with patch.dict(os.environ):
        for name in [n for n in os.environ if n.startswith("SKILLS_") or n == "DATA_DIR"]:
            del os.environ[name]
        defaults: dict[str, dict[str, Any]] = {
            "handler": {"modules": [SPECIMENS]},
            "worker": {"queues": ["direct"]},
            "database": {"url": database_url},
            "redis": {"url": redis_url},
        }
        return settings.load(**{**defaults, **groups})


def new_execution(**changes: Any) -> NewExecution:
    """Return a row to be for the handler ``echo``."""
    defaults: dict[str, Any] = {
        "id": uuid7(),
        "skill_id": uuid7(),
        "skill_name": "echo",
        "skill_version": "1.0.0",
        "handler": "echo",
        "api_key_id": "key-1",
        "caller": "library",
        "session_id": None,
        "provider": None,
        "model": None,
        "tool_call_id": None,
        "request_identity": None,
        "input_digest": None,
        "input": "{}",
        "max_retries": 3,
        "timeout_ms": None,
        "idempotent": True,
        "retry_on_timeout": False,
        "queue": "direct",
        "priority": "normal",
        "not_before": None,
        "expires_at": None,
    }
    return NewExecution(**{**defaults, **changes})


async def install(pool: "asyncpg.Pool[asyncpg.Record]", name: str, **fields: Any) -> Skill:
    """Install a skill whose handler has its own name, unless ``handler_code`` says otherwise."""
    asked = SkillInstall(name=name, **{"handler_code": name, **fields})
    return await skills.install(pool, asked, asked.skill_schema, "test")


async def row(pool: "asyncpg.Pool[asyncpg.Record]", execution_id: UUID) -> Mapping[str, Any]:
    """Return a row of ``skill_executions`` as it stands."""
    found = await pool.fetchrow("SELECT * FROM skill_executions WHERE id = $1", execution_id)
    assert found is not None, f"no execution {execution_id}"
    return dict(found)


async def has_status(
    pool: "asyncpg.Pool[asyncpg.Record]", execution_id: UUID, *wanted: Status
) -> Mapping[str, Any] | None:
    """Return the row once it has one of those states (terminal ones when none is named)."""
    states = wanted or (Status.SUCCESS, Status.ERROR, Status.TIMEOUT)
    found = await row(pool, execution_id)
    return found if found["status"] in states else None


@asynccontextmanager
async def pool_to(url: str) -> "AsyncIterator[asyncpg.Pool[asyncpg.Record]]":
    """Give a pool as the rooms open it."""
    pool = await db.connect(make_settings(url), name="test")
    try:
        yield pool
    finally:
        await db.close(pool)


@asynccontextmanager
async def redis_to(url: str) -> AsyncIterator[Redis]:
    """Give a client as the rooms make it."""
    client = connect_redis(make_settings(redis_url=url))
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def registry_of(
    pool: "asyncpg.Pool[asyncpg.Record]", redis_url: str, *, listen: bool = True
) -> AsyncIterator[Registry]:
    """Give a registry with its own Redis connection and subscription, like a process has."""
    async with redis_to(redis_url) as redis:
        listener = Listener(redis)
        registry = Registry(pool, redis, listener)
        if listen:
            await listener.start()
        try:
            yield registry
        finally:
            await listener.stop()


@asynccontextmanager
async def room_in(
    database_url: str, redis_url: str, folder: Path, **groups: dict[str, Any]
) -> AsyncIterator[Room]:
    """Give a worker's room without its loops: what happens is what the test calls."""
    made = make_settings(database_url, redis_url, data={"dir": folder}, **groups)
    async with opened(made) as room:
        yield room


def context_of(settings: Settings, deadline: float, **changes: Any) -> Context:
    """Return what a handler is given; ``deadline`` is on the loop's clock."""
    defaults: dict[str, Any] = {
        "execution_id": uuid7(),
        "attempt": 1,
        "max_retries": 3,
        "api_key_id": "key-1",
        "caller": "library",
        "session_id": None,
        "provider": None,
        "model": None,
        "deadline": deadline,
        "skill": "skill",
        "settings": settings,
        "workspace": Workspace(settings.data.dir, "key-1", settings.max.file_bytes),
        "sandbox": Sandbox(settings, "worker-test"),
    }
    return Context(**{**defaults, **changes})


def handler_of(function: Any) -> Handler:
    """Return what the decorator made of a function."""
    found: Handler = getattr(function, MARK)
    return found


async def submit(executions: Executions, **changes: Any) -> UUID:
    """Commit a row without ringing, as a dispatcher does that dies right after."""
    new = new_execution(**changes)
    await executions.create(new)
    return new.id


@asynccontextmanager
async def serving(room: Room, *, slots: int = 4, poll_s: float = 0.5) -> AsyncIterator[QueueWorker]:
    """Let a room pull from its queue ``direct``, as a worker's main does."""
    loop = QueueWorker(
        room.redis,
        "direct",
        slots,
        poll_s,
        partial(take, room),
        worker_id=room.id,
        lease_s=room.settings.worker.lease_ms / 1000,
        limits=partial(limits, room),
    )
    task = asyncio.create_task(loop.main())
    try:
        yield loop
    finally:
        loop.stop_picking()
        room.stopping.set()
        await emptied([loop])
        await end(task)


async def ran(room: Room, handler: str, **changes: Any) -> dict[str, Any]:
    """Run one execution here and return its row."""
    execution_id = await submit(room.executions, handler=handler, **changes)
    assert await run_execution(room, execution_id)
    return dict(await row(room.pool, execution_id))


async def claim_one(executions: Executions, execution_id: UUID, worker_id: str) -> Claim | None:
    """Claim one row; None when it is not there to be had."""
    return (await executions.claim([execution_id], worker_id)).get(execution_id)


async def run_execution(room: Room, execution_id: UUID) -> bool:
    """Do with one execution what the loop does; False when another worker is to have it."""
    (answer,) = await take(room, [Ticket(str(execution_id).encode(), 1.0, execution_id, "", "")])
    if isinstance(answer, Verdict):
        return answer is Verdict.DROP
    if (ended := await answer) is not None:
        await publish_finished(room.redis, [ended])
    return True
