import asyncio
import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.errors import ErrorCode, ExecutionFailed
from worker import walk
from worker.paths import SCRATCH
from worker.workspace import Workspace, folder_name

LIMIT = 1000


@pytest.fixture(params=["openat2", "segment by segment"])
def walking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with both ways to walk; the kernel may lack the first."""
    if request.param == "openat2" and not walk.has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(walk, "has_openat2", lambda: request.param == "openat2")
    return str(request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, "key-1", LIMIT)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_owners_have_folders_of_their_own_and_the_nameless_share_one() -> None:
    assert folder_name("key-123") == "65803be0872fa538d3ac513e"
    assert folder_name("anonymous") == "2f183a4e64493af3f377f745"
    assert {folder_name(None), folder_name(""), folder_name("system")} == {folder_name("anonymous")}


# --- reading and writing


async def test_owners_do_not_see_each_others_files(tmp_path: Path) -> None:
    await Workspace(tmp_path, "a", LIMIT).write("x", b"mine")
    with pytest.raises(ExecutionFailed, match="File not found: x"):
        await Workspace(tmp_path, "b", LIMIT).read("x")


async def test_a_write_makes_folders_and_leaves_nothing_else(
    walking: str, workspace: Workspace
) -> None:
    assert await workspace.write("a/./b//c.txt", b"data") == "a/b/c.txt"
    assert await workspace.write("a/b/d.txt", b"more") == "a/b/d.txt"
    assert names(workspace.path) == {"a"}
    assert names(workspace.path / "a" / "b") == {"c.txt", "d.txt"}
    assert (await workspace.read("a/b/c.txt")).content == b"data"
    assert (workspace.path / "a" / "b" / "c.txt").stat().st_mode & 0o077 == 0


async def test_the_limit_counts_bytes_of_the_whole_file(workspace: Workspace) -> None:
    await workspace.write("a", b"x" * LIMIT)
    for write in (
        workspace.write("a", b"x", append=True),
        workspace.write("b", b"x" * (LIMIT + 1)),
    ):
        with pytest.raises(ExecutionFailed, match=r"too large.*SKILLS_MAX_FILE_BYTES") as caught:
            await write
        assert caught.value.code == ErrorCode.FILE_TOO_LARGE
    assert names(workspace.path) == {"a"}
    (workspace.path / "a").write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(ExecutionFailed, match="too large"):
        await workspace.read("a")


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize(
    "kind", ["link", "dangling", "folder link", "fifo", "folder", "below a file"]
)
async def test_what_is_no_plain_file_is_neither_read_nor_written(
    walking: str, workspace: Workspace, tmp_path: Path, kind: str, append: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    place = workspace.path / "a"
    workspace.path.mkdir(parents=True)
    make: dict[str, Callable[[], object]] = {
        "link": lambda: place.symlink_to(outside / "x"),
        "dangling": lambda: place.symlink_to(outside / "new"),
        "folder link": lambda: place.symlink_to(outside),
        "fifo": lambda: os.mkfifo(place),
        "folder": place.mkdir,
        "below a file": lambda: place.write_bytes(b"data"),
    }
    make[kind]()
    path = {"folder link": "a/x", "below a file": "a/x"}.get(kind, "a")
    async with asyncio.timeout(10):
        for attempt in (workspace.read(path), workspace.write(path, b"new", append=append)):
            with pytest.raises(ExecutionFailed) as caught:
                await attempt
            assert caught.value.code == ErrorCode.PATH_REJECTED
            assert ("escapes" in str(caught.value)) == ("link" in kind or kind == "dangling")
            assert str(tmp_path) not in str(caught.value)
    assert names(outside) == {"x"}
    assert (outside / "x").read_bytes() == b"secret"
    assert names(workspace.path) == {"a"}


async def test_a_second_name_of_an_outside_file_is_not_read_and_only_replaced(
    walking: str, workspace: Workspace, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    workspace.path.mkdir(parents=True)
    (workspace.path / "a").hardlink_to(secret)
    for attempt in (workspace.read("a"), workspace.write("a", b"x", append=True)):
        with pytest.raises(ExecutionFailed, match="escapes"):
            await attempt
    await workspace.write("a", b"new")
    assert secret.read_bytes() == b"secret"
    assert (await workspace.read("a")).content == b"new"


async def test_a_workspace_that_is_itself_a_link_is_refused(
    workspace: Workspace, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    workspace.path.parent.mkdir(parents=True)
    workspace.path.symlink_to(outside)
    for attempt in (workspace.read("x"), workspace.write("x", b"new")):
        with pytest.raises(ExecutionFailed):
            await attempt
    assert (outside / "x").read_bytes() == b"secret"


async def test_a_full_disk_is_told_without_the_hosts_paths(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    await workspace.write("a", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ExecutionFailed) as caught:
            await workspace.write("a", b"new")
    assert str(caught.value) == "File can't be used: a: No space left on device"
    assert (await workspace.read("a")).content == b"old"
    assert names(workspace.path) == {"a"}


# --- several at once


async def test_of_many_that_must_not_overwrite_exactly_one_wins(workspace: Workspace) -> None:
    results = await asyncio.gather(
        *(workspace.write("a", b"%d" % i, overwrite=False) for i in range(30)),
        return_exceptions=True,
    )
    winners = [i for i, result in enumerate(results) if result == "a"]
    losers = [result for result in results if isinstance(result, ExecutionFailed)]
    assert len(winners) == 1
    assert {error.code for error in losers} == {ErrorCode.FILE_EXISTS}
    assert (await workspace.read("a")).content == b"%d" % winners[0]


async def test_nothing_appended_at_the_same_time_is_lost(workspace: Workspace) -> None:
    await asyncio.gather(*(workspace.write("log", b"%02d\n" % i, append=True) for i in range(40)))
    lines = (await workspace.read("log")).content.split()
    assert sorted(lines) == [b"%02d" % i for i in range(40)]
    assert names(workspace.path) == {"log"}


async def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(
    workspace: Workspace,
) -> None:
    await workspace.write("a", b"0" * LIMIT)

    async def rewrite() -> None:
        for digit in b"123456789":
            await workspace.write("a", bytes([digit]) * LIMIT)

    writer = asyncio.create_task(rewrite())
    while not writer.done():
        content = (await workspace.read("a")).content
        assert len(content) == LIMIT
        assert len(set(content)) == 1
    await writer


@pytest.mark.parametrize("no_replace", ["renameat2", "link"])
async def test_not_replacing_works_without_the_kernels_help(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, no_replace: str
) -> None:
    if no_replace == "link":  # a C library without renameat2
        monkeypatch.setattr(walk, "libc", SimpleNamespace)
        monkeypatch.setattr(walk, "has_openat2", lambda: False)
    await workspace.write("a", b"first", overwrite=False)
    with pytest.raises(ExecutionFailed, match="exists already"):
        await workspace.write("a", b"second", overwrite=False)
    assert (await workspace.read("a")).content == b"first"
    assert names(workspace.path) == {"a"}


HOLD = """
import os, sys
from worker import workspace
folder = os.open(sys.argv[1], os.O_RDONLY)
with workspace.scratch(folder) as draft:
    os.write(draft, b"half")
    print("holding", flush=True)
    sys.stdin.read()
"""


async def test_what_a_killed_writer_left_is_taken_over_by_the_next(workspace: Workspace) -> None:
    await workspace.write("a", b"old")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workspace.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"holding\n"
        waiting = asyncio.create_task(workspace.write("a", b"new", append=True))
        assert (await workspace.read("a")).content == b"old"
        writer.send_signal(signal.SIGKILL)
        async with asyncio.timeout(20):
            await waiting
    assert (await workspace.read("a")).content == b"oldnew"
    assert names(workspace.path) == {"a"}


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "file"])
async def test_a_scratch_file_that_is_not_ours_is_never_written_through(
    workspace: Workspace, tmp_path: Path, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    workspace.path.mkdir(parents=True)
    place = workspace.path / SCRATCH
    make: dict[str, Callable[[], object]] = {
        "link": lambda: place.symlink_to(outside),
        "hard link": lambda: place.hardlink_to(outside),
        "fifo": lambda: os.mkfifo(place),
        "file": lambda: place.write_bytes(b"residue" * 100),
    }
    make[kind]()
    async with asyncio.timeout(10):
        await workspace.write("a", b"new")
    assert outside.read_bytes() == b"secret"
    assert names(workspace.path) == {"a"}
    assert (await workspace.read("a")).content == b"new"


async def test_a_folder_swapped_for_a_link_while_files_are_used_leads_nowhere(
    walking: str, workspace: Workspace, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    await workspace.write("d/x", b"inside")
    folder, link = os.fsencode(workspace.path / "d"), os.fsencode(workspace.path / "link")
    Path(os.fsdecode(link)).symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        while not stop.is_set():
            if walk.libc().renameat2(here, folder, here, link, exchange):
                raise OSError(ctypes.get_errno(), "renameat2")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = {"read": 0, "written": 0, "refused": 0}
    end = time.monotonic() + 20
    try:
        # until each way has been gone often enough, however the two threads happen to interleave
        while min(seen.values()) < 20 and time.monotonic() < end:
            try:
                assert (await workspace.read("d/x")).content == b"inside"
                seen["read"] += 1
                await workspace.write("d/x", b"inside")
                seen["written"] += 1
            except ExecutionFailed:
                seen["refused"] += 1
    finally:
        stop.set()
        swapper.join()
    assert min(seen.values()) > 0, seen
    assert names(outside) == {"x"}
    assert (outside / "x").read_bytes() == b"secret"
