"""The three writes of an execution's life: create, claim, finish. There are no others.

Each is one statement over ``unnest`` for all rows that arrived together, each states the state it
expects, and zero rows changed means that somebody else was first. What goes in and out is tuples
in the statements' order: thousands of them are made in a second.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from shared.batcher import Batcher
from shared.db import ACQUIRE_TIMEOUT_S, Pool, reaching
from shared.errors import InvalidInput
from shared.pauses import Pause, names, unpaused
from shared.states import Status


class NewExecution(NamedTuple):
    """A row to be: what the request said, with the skill's and handler's defaults resolved.

    ``input`` is JSON text; ``key`` the idempotency key, unique for its owner for ``key_ttl_ms``.
    """

    id: UUID
    skill_id: UUID
    skill_name: str
    skill_version: str
    handler: str
    api_key_id: str
    caller: str
    session_id: str | None
    provider: str | None
    model: str | None
    tool_call_id: str | None
    request_identity: str | None
    input_digest: str | None
    input: str
    max_retries: int
    timeout_ms: int | None
    idempotent: bool
    retry_on_timeout: bool
    queue: str
    priority: str
    not_before: datetime | None
    expires_at: datetime | None
    key: str | None = None
    key_ttl_ms: int = 0


class Created(NamedTuple):
    """The row is committed."""

    created_at: datetime


class Existing(NamedTuple):
    """The idempotency key belongs to an execution already, made from a request of this digest."""

    execution_id: UUID
    digest: str


class Claim(NamedTuple):
    """A row that is ours to run: this attempt, on this worker."""

    id: UUID
    worker_id: str
    attempt: int
    attempts: list[dict[str, Any]]
    skill_id: UUID
    skill_name: str
    skill_version: str
    handler: str
    api_key_id: str
    caller: str
    session_id: str | None
    provider: str | None
    model: str | None
    input: dict[str, Any]
    max_retries: int
    timeout_ms: int | None
    idempotent: bool
    retry_on_timeout: bool
    queue: str
    priority: str


class Ending(NamedTuple):
    """How an attempt ended. ``pending`` gives the row back, to be run again after ``retry_in_s``.

    ``output`` and ``history`` are JSON text; history is this attempt's entry, for failed ones.
    """

    id: UUID
    attempt: int
    worker_id: str
    status: Status
    output: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    duration_ms: int | None = None
    history: str | None = None
    retry_in_s: float = 0.0


COLUMNS = {
    "id": "uuid",
    "skill_id": "uuid",
    "skill_name": "text",
    "skill_version": "text",
    "handler": "text",
    "api_key_id": "text",
    "caller": "text",
    "session_id": "text",
    "provider": "text",
    "model": "text",
    "tool_call_id": "text",
    "request_identity": "text",
    "input_digest": "text",
    "input": "jsonb",
    "max_retries": "integer",
    "timeout_ms": "integer",
    "idempotent": "boolean",
    "retry_on_timeout": "boolean",
    "queue": "text",
    "priority": "text",
    "not_before": "timestamptz",
    "expires_at": "timestamptz",
}
NAMES = ", ".join(COLUMNS)
# asyncpg encodes a jsonb[] item by item in Python; text[] with one cast in SQL is cheaper.
ARRAYS = ", ".join(
    f"${place}::{'text' if kind == 'jsonb' else kind}[]"
    for place, kind in enumerate(COLUMNS.values(), start=1)
)
VALUES = ", ".join(f"{name}::jsonb" if kind == "jsonb" else name for name, kind in COLUMNS.items())
WIDTH = len(COLUMNS)

CREATE = f"""
INSERT INTO skill_executions ({NAMES})
SELECT {VALUES} FROM unnest({ARRAYS}) AS new ({NAMES})
RETURNING id, created_at
"""

CREATE_KEYED = f"""
WITH new AS (
    SELECT * FROM unnest({ARRAYS}, ${WIDTH + 1}::text[], ${WIDTH + 2}::integer[])
        WITH ORDINALITY AS new ({NAMES}, key, key_ttl_ms, place)
), kept AS (
    INSERT INTO execution_keys (owner, key, digest, execution_id, expires_at)
    SELECT DISTINCT ON (api_key_id, key)
           api_key_id, key, input_digest, id,
           clock_timestamp() + key_ttl_ms * interval '1 millisecond'
      FROM new WHERE key IS NOT NULL ORDER BY api_key_id, key, place
    ON CONFLICT (owner, key) DO UPDATE
       SET digest = excluded.digest, execution_id = excluded.execution_id,
           expires_at = excluded.expires_at
     WHERE execution_keys.expires_at <= clock_timestamp()
    RETURNING execution_id
)
INSERT INTO skill_executions ({NAMES})
SELECT {VALUES} FROM new WHERE key IS NULL OR id IN (SELECT execution_id FROM kept)
RETURNING id, created_at
"""

KEY_HOLDERS = """
SELECT k.owner, k.key, k.digest, k.execution_id
  FROM execution_keys k JOIN unnest($1::text[], $2::text[]) AS asked (owner, key) USING (owner, key)
 WHERE k.expires_at > clock_timestamp()
"""

RUNNABLE = """
status = 'pending' AND approval IS DISTINCT FROM 'required'
  AND (not_before IS NULL OR not_before <= clock_timestamp())
  AND (retry_at IS NULL OR retry_at <= clock_timestamp())
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
"""

CLAIM = f"""
WITH free AS (
    SELECT id FROM skill_executions WHERE id = ANY($1::uuid[])
       AND handler = ANY($3::text[]) AND {RUNNABLE} AND {unpaused(4)}
       FOR UPDATE SKIP LOCKED
)
UPDATE skill_executions e
   SET status = 'running', attempt = e.attempt + 1, worker_id = $2, retry_at = NULL,
       started_at = clock_timestamp()
  FROM free WHERE e.id = free.id
RETURNING {", ".join(f"e.{name}" for name in Claim._fields)}
"""

CANCELLED = "The execution was cancelled"

MOMENT = "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"

# What a caller wants cancelled is not handed back: it ends here. The ids stand in the WHERE too, or
# the planner reads a whole partition to join it.
STOPPED = "u.status = 'pending' AND e.cancel_requested_at IS NOT NULL"
BACK = "u.status = 'pending' AND e.cancel_requested_at IS NULL"
FINISH = f"""
UPDATE skill_executions e
   SET status = CASE WHEN {STOPPED} THEN 'error' ELSE u.status END, output = u.output::jsonb,
       error_code = CASE WHEN {STOPPED} THEN 'cancelled' ELSE u.error_code END,
       error_message = CASE WHEN {STOPPED} THEN '{CANCELLED}' ELSE u.error_message END,
       duration_ms = u.duration_ms,
       attempts = CASE WHEN u.history IS NULL THEN e.attempts ELSE
           e.attempts || (u.history::jsonb || jsonb_build_object(
               'startedAt', {MOMENT.format("e.started_at")},
               'finishedAt', {MOMENT.format("clock_timestamp()")}))
       END,
       finished_at = CASE WHEN {BACK} THEN NULL ELSE clock_timestamp() END,
       started_at = CASE WHEN {BACK} THEN NULL ELSE e.started_at END,
       worker_id = CASE WHEN {BACK} THEN NULL ELSE e.worker_id END,
       retry_at = CASE WHEN {BACK}
           THEN clock_timestamp() + u.retry_in_s * interval '1 second' END
  FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
              $8::integer[], $9::text[], $10::float8[])
       AS u (id, attempt, worker_id, status, output, error_code, error_message,
             duration_ms, history, retry_in_s)
 WHERE e.id = ANY($1::uuid[]) AND e.id = u.id AND e.status = 'running'
   AND e.attempt = u.attempt AND e.worker_id = u.worker_id
RETURNING e.id, e.attempt, e.status
"""


class Executions:
    """The doors, over one pool. Rows that arrive together are written together."""

    def __init__(self, pool: "Pool[asyncpg.Record]", offered: Sequence[str] = ()) -> None:
        """``offered`` are the handlers of this process: only their executions are claimed."""
        self._pool = pool
        self._offered = list(offered)
        self._creates = Batcher(self._create, lambda row: len(row.input))
        self._holders = Batcher(self._find_holders)
        self._finishes = Batcher(self._finish, lambda row: len(row.output or ""))

    async def create(self, new: NewExecution) -> Created | Existing:
        """Commit a pending row; or say whose idempotency key it is.

        Raises Unavailable, and InvalidInput for a value that Postgres can't hold.
        """
        try:
            return await self._creates.submit(new) or await self._keyed(new)
        except asyncpg.DataError as error:
            raise refused() from error

    async def create_many(
        self, news: Sequence[NewExecution]
    ) -> "list[Created | Existing | BaseException]":
        """Do what ``create`` does with many rows at once: each one's answer, or its error."""
        made = await asyncio.gather(*map(self._creates.hand_in, news), return_exceptions=True)
        keyed = [new for new, one in zip(news, made, strict=True) if one is None]
        held = iter(await asyncio.gather(*map(self._keyed, keyed), return_exceptions=True))
        return [
            next(held) if one is None else refused() if isinstance(one, asyncpg.DataError) else one
            for one in made
        ]

    async def _keyed(self, new: NewExecution) -> Created | Existing:
        # Without a holder the key's time ran out in between: it is ours to take now.
        return await self._holders.submit(new) or await self.create(new)

    async def holder(self, new: NewExecution) -> Existing | None:
        """Say whose the row's idempotency key is, if it has one and it is anybody's."""
        return await self._holders.submit(new) if new.key is not None else None

    async def claim(
        self, ids: Sequence[UUID], worker_id: str, pauses: Iterable[Pause] = ()
    ) -> dict[UUID, Claim]:
        """Take the runnable rows among these for this worker; return those that it got.

        What is named by ``pauses`` is not runnable.
        """
        if not ids:
            return {}
        taken = await self._fetch(CLAIM, ids, worker_id, self._offered, *names(pauses))
        return {claim.id: claim for claim in map(Claim._make, taken)}

    async def finish(self, ending: Ending) -> Status | None:
        """End or hand back an attempt; return the status written.

        That is ``error`` for a hand-back of what was to be cancelled, and None when the attempt is
        not this worker's any more.
        """
        return await self._finishes.submit(ending)

    async def drain(self) -> None:
        """Wait until every write handed in is answered."""
        await self._creates.drain()
        await self._finishes.drain()

    async def _create(self, rows: Sequence[NewExecution]) -> list[Created | None]:
        columns = list(zip(*rows, strict=True))
        keyed = any(row.key is not None for row in rows)
        arguments = columns if keyed else columns[:WIDTH]
        made = await self._fetch(CREATE_KEYED if keyed else CREATE, *arguments)
        created = {row["id"]: Created(row["created_at"]) for row in made}
        return [created.get(row.id) for row in rows]

    # A statement of its own: the insert's snapshot does not see the row that it ran into.
    async def _find_holders(self, rows: Sequence[NewExecution]) -> list[Existing | None]:
        found = await self._fetch(KEY_HOLDERS, [r.api_key_id for r in rows], [r.key for r in rows])
        held = {(r["owner"], r["key"]): Existing(r["execution_id"], r["digest"]) for r in found}
        return [held.get((row.api_key_id, row.key)) for row in rows]

    async def _finish(self, rows: Sequence[Ending]) -> list[Status | None]:
        columns = list(zip(*rows, strict=True))
        ended = await self._fetch(FINISH, *columns)
        written = {(row["id"], row["attempt"]): Status(row["status"]) for row in ended}
        return [written.get((row.id, row.attempt)) for row in rows]

    async def _fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        async with reaching(), self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
            found: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
            return found


def refused() -> InvalidInput:
    """Return the error of a row that Postgres can't hold."""
    return InvalidInput("A value of the request can't be stored")
