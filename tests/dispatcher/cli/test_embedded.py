import asyncio
import os
import signal
import stat
from pathlib import Path

import asyncpg
import pytest
from redis import Redis

from dispatcher.cli import embedded
from dispatcher.cli.children import ChildFailed


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Give a folder below one that only its owner may enter, as `mktemp -d` makes them."""
    outer = tmp_path / "only mine"
    outer.mkdir(mode=0o700)
    folder = outer / "data"
    folder.mkdir(mode=0o700)
    return folder


async def counted(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS runs (n int)")
        await connection.execute("INSERT INTO runs VALUES (1)")
        return int(await connection.fetchval("SELECT count(*) FROM runs"))
    finally:
        await connection.close()


def start_and_count(folder: Path) -> tuple[embedded.Embedded, int, int]:
    started = embedded.start(folder)
    try:
        with Redis.from_url(str(started.redis_url)) as client:
            incremented = int(client.incr("runs"))
        return started, asyncio.run(counted(str(started.database_url))), incremented
    except BaseException:
        started.stop()
        raise


def test_data_outlive_a_stop_and_a_power_cut(private: Path) -> None:
    started, rows, number = start_and_count(private)
    assert (rows, number) == (1, 1)
    started.stop()

    started, rows, number = start_and_count(private)
    assert (rows, number) == (2, 2)
    with Redis.from_url(str(started.redis_url)) as client:
        client.waitaof(1, 0, 10_000)  # its log is on disk
    for child in started.children:
        assert child.process is not None
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()

    started, rows, number = start_and_count(private)
    assert (rows, number) == (3, 3)
    started.stop()


def test_no_permission_is_widened_for_it(private: Path) -> None:
    started = embedded.start(private)
    started.stop()
    for folder in (private.parent, private, private / "run"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_long_path_gets_its_sockets_elsewhere_still_private(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    sockets = embedded.socket_dir(folder)
    try:
        assert not sockets.is_relative_to(folder)
        assert len(os.fsencode(sockets / embedded.POSTGRES_SOCKET)) <= embedded.SOCKET_BYTES
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    finally:
        sockets.rmdir()


def test_a_start_that_fails_leaves_nothing_running_and_shows_the_log(tmp_path: Path) -> None:
    (tmp_path / "valkey").write_text("a file where a folder must be")
    with pytest.raises(OSError, match="valkey"):
        embedded.start(tmp_path)
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()

    (tmp_path / "valkey").unlink()
    (tmp_path / "postgres" / "postgresql.conf").write_text("no such setting\n")
    with pytest.raises(ChildFailed, match=r"postgresql\.conf"):
        embedded.start(tmp_path)


def test_a_missing_extra_is_answered_with_the_ways_out() -> None:
    with pytest.raises(embedded.EmbeddedMissing) as caught:
        embedded.package("no_such_package_here", "Postgres", "--database-url")
    assert "skillfleet[embedded]" in caught.value.message
    assert "--database-url" in caught.value.message
