"""The Postgres pool: how it is opened, what it speaks, what its absence is called."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pydantic_core import from_json, to_json

from shared.errors import ConfigurationError, Unavailable
from shared.settings import Settings

Pool = asyncpg.Pool

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that breaks between two steps of a statement
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)
"""What asyncpg raises when the server is away, going away, full, failing over or contended."""

ACQUIRE_TIMEOUT_S = 10.0


async def connect(settings: Settings, *, name: str) -> "Pool[asyncpg.Record]":
    """Open the pool; ``name`` is the application name that Postgres shows.

    Raises Unavailable when the server can't be reached, ConfigurationError for a wrong URL.
    """
    async with connecting():
        return await asyncpg.create_pool(
            settings.database.url,
            min_size=1,
            max_size=settings.database.pool_size,
            command_timeout=settings.database.statement_timeout_ms / 1000 + 5,
            init=prepare,
            reset=leave,
            server_settings={
                "application_name": name,
                # Planning takes longer than most statements of ours do (docs/decisions.md).
                "plan_cache_mode": "force_generic_plan",
                # A plan made while a partition was empty would read all of it once it is full: it
                # stays until the next ANALYZE. Where there is no index to go by nothing changes,
                # but before Postgres 18 such a plan looks dear enough to be compiled.
                "enable_seqscan": "off",
                "jit": "off",
                "statement_timeout": str(settings.database.statement_timeout_ms),
            },
        )


@asynccontextmanager
async def connecting() -> AsyncIterator[None]:
    """Say in a sentence why a first connection failed, and which setting to look at."""
    try:
        yield
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
    ) as error:
        raise ConfigurationError(f"Postgres refuses: {error}. Check SKILLS_DATABASE_URL") from error
    except ValueError as error:  # asyncpg's own is an InterfaceError too: before what is lost
        raise ConfigurationError(f"SKILLS_DATABASE_URL is not a Postgres URL: {error}") from error
    except LOST as error:
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        raise Unavailable(
            f"Postgres can't be reached ({reason}). "
            "Check SKILLS_DATABASE_URL and that the server runs"
        ) from error


async def prepare(connection: Any) -> None:
    """Teach a connection to carry jsonb as Python values, big integers included."""
    await connection.set_type_codec(
        "jsonb", encoder=encode, decoder=from_json, schema="pg_catalog", format="text"
    )


async def leave(_: Any) -> None:
    """Reset nothing when a connection goes back: what asyncpg would is a round trip a statement.

    Nothing of ours outlives its transaction in a session: no LISTEN, no advisory lock, SET LOCAL
    only. A transaction that was left open asyncpg rolls back all the same.
    """


def encode(value: object) -> str:
    """Return a value's JSON text as jsonb takes it."""
    return to_json(value).decode()


@asynccontextmanager
async def reaching() -> AsyncIterator[None]:
    """Turn a lost server into Unavailable, the error that callers know."""
    try:
        yield
    except asyncpg.DataError:  # an InterfaceError by ancestry, but ours to mend, not the server's
        raise
    except LOST as error:
        raise Unavailable("The database is not reachable right now; try again shortly") from error


@asynccontextmanager
async def transaction(pool: "Pool[asyncpg.Record]") -> AsyncIterator[Any]:
    """Give a connection inside a transaction; raise Unavailable when there is none to be had."""
    async with (
        reaching(),
        pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def surveying(pool: "Pool[asyncpg.Record]") -> AsyncIterator[Any]:
    """Give a connection for reads of many rows, whose best plan depends on what is asked for.

    Raises Unavailable when there is none to be had.
    """
    async with (
        reaching(),
        pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection,
        connection.transaction(readonly=True),
    ):
        await connection.execute(
            "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = on"
        )
        yield connection


async def close(pool: "Pool[asyncpg.Record]") -> None:
    """Close the pool, within five seconds or by force."""
    try:
        async with asyncio.timeout(5):
            await pool.close()
    except TimeoutError:
        pool.terminate()
