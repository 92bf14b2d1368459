"""An owner's workspace: a folder of its own, and the only files that its skills reach.

``<data dir>/skills/workspaces/<24 hex digits>/``. A write is one step for everybody who looks: the
new content is written to a scratch file beside the target, flushed, and renamed over it. The
scratch file is also the folder's lock, so that writers take turns and none loses what another
appended; one that a killed writer left is taken over by the next, so there is never more than one.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shared.errors import ErrorCode, ExecutionFailed
from worker import walk
from worker.paths import ESCAPES, SCRATCH, rejected, segments

ANONYMOUS = "anonymous"
SYSTEM = "system"
FILE_MODE = 0o600
ATTEMPTS = 10_000
"""Turns a writer waits for a folder's scratch file before it gives up; each is another's write."""


@dataclass(frozen=True, slots=True)
class File:
    """What was read: the path within the workspace, and the content."""

    path: str
    content: bytes


class Workspace:
    """The files of one owner. Making one touches no disk; the folder comes with the first write."""

    def __init__(self, data_dir: Path, api_key_id: str | None, max_bytes: int) -> None:
        """Take the owner; none, the empty one and ``system`` share the workspace ``anonymous``."""
        self._data_dir = data_dir
        self._api_key_id = api_key_id
        self.max_bytes = max_bytes

    @cached_property
    def path(self) -> Path:
        """Return the folder; worked out when asked for, since most attempts never do."""
        return self._data_dir / "skills" / "workspaces" / folder_name(self._api_key_id)

    async def read(self, path: object) -> File:
        """Return a file's content.

        Raises ExecutionFailed: path_rejected, file_not_found, or file_too_large above max_bytes.
        """
        names = segments(path)
        content = await asyncio.to_thread(self._read, names)
        return File("/".join(names), content)

    async def write(
        self, path: object, content: bytes, *, append: bool = False, overwrite: bool = True
    ) -> str:
        """Write a file, making its folders; return its path within the workspace.

        ``append`` adds to what is there, whatever ``overwrite`` says; else ``overwrite=False``
        never replaces a file, also not one that another writer makes meanwhile. Raises
        ExecutionFailed: path_rejected, file_exists, or file_too_large when the file would grow
        above max_bytes.
        """
        names = segments(path)
        if len(content) > self.max_bytes:
            raise self._too_large("/".join(names))
        await asyncio.to_thread(self._write, names, content, append, overwrite)
        return "/".join(names)

    def _read(self, names: tuple[str, ...]) -> bytes:
        shown = "/".join(names)
        try:
            with (
                opened(self._root()) as root,
                opened(walk.open_beneath(root, names, walk.FILE)) as f,
            ):
                return self._content(f, shown)
        except FileNotFoundError:
            raise walk.missing(shown) from None
        except OSError as error:
            raise failed(shown, error) from error

    def _write(self, names: tuple[str, ...], content: bytes, append: bool, overwrite: bool) -> None:
        shown = "/".join(names)
        try:
            self.path.mkdir(mode=walk.FOLDER_MODE, parents=True, exist_ok=True)
            with (
                opened(self._root()) as root,
                opened(walk.make_folders(root, names[:-1])) as folder,
                scratch(folder) as draft,
            ):
                before = self._before(folder, names[-1], shown) if append else b""
                if len(before) + len(content) > self.max_bytes:
                    raise self._too_large(shown)
                inspect(folder, names[-1])
                fill(draft, before + content)
                if not publish(folder, names[-1], replace=append or overwrite):
                    raise ExecutionFailed(
                        f"File exists already: {shown}. Set overwrite to replace it",
                        code=ErrorCode.FILE_EXISTS,
                    )
        except OSError as error:
            raise failed(shown, error) from error

    def _root(self) -> int:
        return os.open(self.path, walk.FOLDER)

    def _before(self, folder: int, name: str, shown: str) -> bytes:
        try:
            with opened(walk.open_beneath(folder, [name], walk.FILE)) as file:
                return self._content(file, shown)
        except FileNotFoundError:
            return b""

    def _content(self, file: int, shown: str) -> bytes:
        if walk.regular(file).st_size > self.max_bytes:
            raise self._too_large(shown)
        with open(file, "rb", closefd=False) as reader:
            content = reader.read(self.max_bytes + 1)
        if len(content) > self.max_bytes:
            raise self._too_large(shown)
        return content

    def _too_large(self, shown: str) -> ExecutionFailed:
        return ExecutionFailed(
            f"File is too large: {shown}. At most {self.max_bytes} bytes are read or kept "
            "(SKILLS_MAX_FILE_BYTES)",
            code=ErrorCode.FILE_TOO_LARGE,
        )


def folder_name(api_key_id: str | None) -> str:
    """Return the name of an owner's folder: the first 24 hex digits of its id's SHA-256."""
    owner = ANONYMOUS if api_key_id in {None, "", SYSTEM} else str(api_key_id)
    return hashlib.sha256(owner.encode()).hexdigest()[:24]


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close the descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def scratch(folder: int) -> Iterator[int]:
    """Hold a folder's scratch file, empty and locked; remove it at the end if it is still there."""
    for _ in range(ATTEMPTS):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            draft = os.open(SCRATCH, flags, FILE_MODE, dir_fd=folder)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENXIO}:
                raise
            os.unlink(SCRATCH, dir_fd=folder)  # a link or a FIFO by that name is nobody's draft
            continue
        with opened(draft):
            fcntl.flock(draft, fcntl.LOCK_EX)
            if not same(folder, draft):
                continue  # its last holder renamed it: by now it is somebody's file
            state = os.fstat(draft)
            if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
                os.unlink(SCRATCH, dir_fd=folder)
                continue
            os.ftruncate(draft, 0)
            try:
                yield draft
            finally:
                if same(folder, draft):
                    os.unlink(SCRATCH, dir_fd=folder)
            return
    raise TimeoutError(errno.ETIMEDOUT, "too many writers in one folder")


def same(folder: int, draft: int) -> bool:
    """Tell whether the scratch name still stands for the file that is held."""
    try:
        return os.path.samestat(os.lstat(SCRATCH, dir_fd=folder), os.fstat(draft))
    except FileNotFoundError:
        return False


def inspect(folder: int, name: str) -> None:
    """Refuse a target that is there but no regular file: a rename would replace a link."""
    with suppress(FileNotFoundError):
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISLNK(mode):
            raise rejected(ESCAPES)
        if not stat.S_ISREG(mode):
            raise rejected("Skill file path does not name a regular file")


def fill(draft: int, content: bytes) -> None:
    """Write and flush all of it: a rename must not become durable before what it names."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(draft, rest) :]
    os.fsync(draft)


def publish(folder: int, name: str, *, replace: bool) -> bool:
    """Give the scratch file its name, durably; return False when it must not replace a file."""
    try:
        if replace:
            os.rename(SCRATCH, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            walk.rename_new(SCRATCH, name, folder)
    except FileExistsError:
        return False
    os.fsync(folder)
    return True


def failed(shown: str, error: OSError) -> ExecutionFailed:
    """Turn an operating system's error into the caller's, without paths of this host."""
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return ExecutionFailed(f"File can't be used: {shown}: {reason}")
