import asyncio
import subprocess
import sys

import asyncpg
import pytest

from shared import migrate
from shared.errors import ConfigurationError, SchemaOutdated, Unavailable
from tests.conftest import SpawnWorker
from tests.factories import pool_to
from tests.services import free_port, on_database

PROGRAM = "import sys; from shared.migrate import migrate; print(migrate(sys.argv[1]))"


async def tables(url: str) -> int:
    async with pool_to(url) as pool:
        return int(
            await pool.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        )


async def test_several_processes_at_once_migrate_once(empty_database_url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, empty_database_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
        assert out.decode().strip() == migrate.needed()
    async with pool_to(empty_database_url) as pool:
        assert await migrate.current(pool) == migrate.needed()
        assert await pool.fetchval("SELECT count(*) FROM alembic_version") == 1
        await migrate.require(pool)


async def test_migrating_again_changes_nothing(database_url: str) -> None:
    before = await tables(database_url)
    assert await migrate.upgrade(database_url) == migrate.needed()
    assert await tables(database_url) == before


async def test_an_empty_database_is_refused_with_what_to_do(empty_database_url: str) -> None:
    async with pool_to(empty_database_url) as pool:
        assert await migrate.current(pool) is None
        with pytest.raises(SchemaOutdated, match=r"no schema yet.*skillfleet migrate"):
            await migrate.require(pool)


async def set_revision(url: str, revision: str) -> None:
    async with pool_to(url) as pool:
        await pool.execute("UPDATE alembic_version SET version_num = $1", revision)


async def test_an_older_schema_is_refused(database_url: str) -> None:
    await set_revision(database_url, "0000")
    async with pool_to(database_url) as pool:
        with pytest.raises(SchemaOutdated, match=f"at 0000.*needs {migrate.needed()}"):
            await migrate.require(pool)


async def test_a_newer_schema_will_do_and_is_not_touched(database_url: str) -> None:
    await set_revision(database_url, "9999")
    async with pool_to(database_url) as pool:
        await migrate.require(pool)
    assert await migrate.upgrade(database_url) == "9999"


async def test_a_worker_refuses_an_older_schema_and_says_how_to_go_on(
    empty_database_url: str, spawn_worker: SpawnWorker
) -> None:
    worker = await spawn_worker(ready=False, SKILLS_DATABASE_URL=empty_database_url)
    assert await asyncio.to_thread(worker.wait) == 2
    assert "Run `skillfleet migrate`" in worker.logged()
    assert "Traceback" not in worker.logged()


async def test_a_database_that_is_not_there_is_a_wrong_setting(database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="SKILLS_DATABASE_URL"):
        await migrate.upgrade(on_database(database_url, "no_such_database"))


async def test_a_server_that_is_not_there_may_come_back() -> None:
    with pytest.raises(Unavailable, match="can't be reached"):
        await migrate.upgrade(f"postgresql://me@127.0.0.1:{free_port()}/x")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("status", "'paused'"),
        ("queue", "'fast'"),
        ("priority", "'urgent'"),
        ("approval", "'maybe'"),
    ],
)
async def test_the_table_itself_refuses_what_is_no_state(
    database_url: str, column: str, value: str
) -> None:
    async with pool_to(database_url) as pool:
        with pytest.raises(asyncpg.CheckViolationError):
            await pool.execute(
                "INSERT INTO skill_executions (id, skill_id, skill_name, skill_version, handler, "
                "api_key_id, caller, input, max_retries, idempotent, retry_on_timeout, "
                + ("" if column == "queue" else "queue, ")
                + f"{column}) VALUES (gen_random_uuid(), gen_random_uuid(), 's', '1', 'h', 'k', "
                "'c', '{}', 0, true, false, "
                + ("" if column == "queue" else "'direct', ")
                + f"{value})"
            )
