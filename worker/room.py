"""Everything that one worker process holds, made in main and passed down."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
from redis.asyncio import Redis

from shared.db import Pool
from shared.executions import Executions
from shared.queue import Queue
from shared.registry import Registry
from shared.settings import Settings
from shared.validators import Validators
from worker.handlers import Handler
from worker.sandbox.run import Sandbox
from worker.stops import Stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A worker's parts. ``stopping`` ends attempts early: set, all of them.

    ``held`` are the executions this process is about to claim or runs: a running row that names
    this worker and is not among them was claimed by a statement whose answer got lost.
    """

    id: str
    settings: Settings
    pool: "Pool[asyncpg.Record]"
    redis: Redis
    registry: Registry
    executions: Executions
    queue: Queue
    validators: Validators
    handlers: Mapping[str, Handler]
    sandbox: Sandbox
    stopping: Stops = field(default_factory=Stops)
    held: set[UUID] = field(default_factory=set)
