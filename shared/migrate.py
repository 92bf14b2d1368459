"""Brings the database's schema to what this program needs, and refuses to run on an older one.

Revisions are numbered ``0001``, ``0002``, …; a newer schema than ours is fine, since every change
is first an expansion that old programs can live with.
"""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg

from shared.db import connecting
from shared.errors import SchemaOutdated

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK = 0x5F1EE7
"""The advisory lock that lets one migration run at a time."""


def migrate(url: str) -> str:
    """Apply every missing revision to the database at ``url``; return the revision reached.

    Safe to run from several processes at once: they take turns under an advisory lock.
    """
    return asyncio.run(upgrade(url))


async def upgrade(url: str) -> str:
    """Do what ``migrate`` does, on the running loop. Raises Unavailable, ConfigurationError."""
    async with connecting():
        await (await asyncpg.connect(url)).close()
    # Alembic and SQLAlchemy are only needed here, not by a running dispatcher or worker.
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    # The creator hands asyncpg our own URL, socket directories included.
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), poolclass=NullPool
    )
    try:
        async with engine.connect() as connection:
            await connection.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
            await connection.commit()
            try:
                # A newer program may have been here already; its schema serves us too.
                if (found := await connection.run_sync(revision) or "") < needed():
                    await connection.run_sync(run_revisions)
                    await connection.commit()
                    found = needed()
            finally:
                await connection.execute(text(f"SELECT pg_advisory_unlock({LOCK})"))
                await connection.commit()
    finally:
        await engine.dispose()
    return found


def revision(connection: Any) -> str | None:
    """Return the database's revision, on a synchronous connection; None when there is none."""
    from alembic.migration import MigrationContext

    found: str | None = MigrationContext.configure(connection).get_current_revision()
    return found


def run_revisions(connection: object) -> None:
    """Run Alembic's upgrade on a synchronous connection."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def needed() -> str:
    """Return the newest revision that this program ships."""
    return max(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


async def require(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Raise SchemaOutdated unless the database is at our revision or a newer one."""
    found = await current(pool)
    if found is None or found < needed():
        raise SchemaOutdated(found, needed())


async def current(pool: "asyncpg.Pool[asyncpg.Record]") -> str | None:
    """Return the database's revision; None when it was never migrated."""
    try:
        found = await pool.fetchval("SELECT version_num FROM alembic_version")
    except asyncpg.UndefinedTableError:
        return None
    return None if found is None else str(found)
