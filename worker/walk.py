"""The walk to a file, done by the kernel: no symlink followed, no way out, no race.

``openat2`` walks in one call where the kernel and its filters have it (Linux ≥5.6); elsewhere each
segment is opened by its own ``openat`` with O_NOFOLLOW, which is as safe and slower. Segments come
from ``worker.paths``: none is ``..``, empty, or holds a slash.
"""

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from shared.errors import ErrorCode, ExecutionFailed
from worker.paths import ESCAPES, rejected

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""O_NONBLOCK: opening a FIFO must not wait for somebody at its other end."""

FOLDER_MODE = 0o700

SYS_OPENAT2 = 437
"""The same number on every architecture but alpha, which CPython's platforms leave out."""
RESOLVE = 0x01 | 0x02 | 0x04 | 0x08
"""RESOLVE_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH (linux/openat2.h)."""
RENAME_NOREPLACE = 1
"""linux/fs.h"""


class OpenHow(ctypes.Structure):
    """``struct open_how`` (linux/openat2.h)."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(root: int, names: Sequence[str], flags: int) -> int:
    """Open what the names lead to, below the folder ``root``; return its descriptor.

    Raises ExecutionFailed (path_rejected) when a link or a mount is in the way, or a file where a
    folder should be; FileNotFoundError when something is missing; OSError for the rest.
    """
    try:
        if has_openat2():
            return openat2(root, "/".join(names) or ".", flags)
        return stepwise(root, names, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EXDEV}:
            raise rejected(ESCAPES) from None
        if error.errno in {errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENODEV}:
            raise rejected(obstacle(root, names)) from None
        raise


def make_folders(root: int, names: Sequence[str]) -> int:
    """Open a folder below ``root``, making what is missing of it; return its descriptor."""
    try:
        return open_beneath(root, names, FOLDER)
    except FileNotFoundError:
        pass
    here = os.dup(root)
    try:
        for name in names:
            with suppress(FileExistsError):  # whatever is there, the open looks at it
                os.mkdir(name, FOLDER_MODE, dir_fd=here)
            inner = open_beneath(here, [name], FOLDER)
            os.close(here)
            here = inner
    except BaseException:
        os.close(here)
        raise
    return here


def openat2(root: int, path: str, flags: int) -> int:
    """Call ``openat2(2)``; raise OSError with its errno."""
    how = OpenHow(flags, 0, RESOLVE)
    for _ in range(16):
        opened = libc().syscall(
            ctypes.c_long(SYS_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(path.encode()),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if opened >= 0:
            return int(opened)
        code = ctypes.get_errno()
        # EAGAIN: something was renamed meanwhile, and the kernel could not be sure
        if code not in {errno.EAGAIN, errno.EINTR}:
            break
    raise OSError(code, os.strerror(code))


def stepwise(root: int, names: Sequence[str], flags: int) -> int:
    """Open segment by segment, following nothing and staying on the root's file system."""
    device = os.fstat(root).st_dev
    here = os.dup(root)
    try:
        for index, name in enumerate(names):
            last = index == len(names) - 1
            inner = os.open(name, flags if last else FOLDER, dir_fd=here)
            os.close(here)
            here = inner
            if os.fstat(here).st_dev != device:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    except BaseException:
        os.close(here)
        raise
    return here


def obstacle(root: int, names: Sequence[str]) -> str:
    """Say what stands in the way: O_DIRECTORY answers ENOTDIR for links and files alike."""
    for end in range(1, len(names) + 1):
        try:
            parent = stepwise(root, names[: end - 1], FOLDER) if end > 1 else os.dup(root)
        except OSError:
            break
        try:
            mode = os.lstat(names[end - 1], dir_fd=parent).st_mode
        except OSError:
            break
        finally:
            os.close(parent)
        if stat.S_ISLNK(mode):
            return ESCAPES
    return "Skill file path runs through something that is not a folder, or ends at no regular file"


def rename_new(source: str, target: str, folder: int) -> None:
    """Rename within a folder; raise FileExistsError, atomically, when the target is there."""
    code = errno.ENOSYS
    if hasattr(libc(), "renameat2"):
        failed = libc().renameat2(
            ctypes.c_int(folder),
            ctypes.c_char_p(source.encode()),
            ctypes.c_int(folder),
            ctypes.c_char_p(target.encode()),
            ctypes.c_uint(RENAME_NOREPLACE),
        )
        code = ctypes.get_errno() if failed else 0
    if code in {errno.EINVAL, errno.ENOSYS, errno.EPERM}:
        # a C library, filter or file system without it (NFS): link() refuses a taken name as well
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(source, dir_fd=folder)
    elif code:
        raise OSError(code, os.strerror(code))


def regular(descriptor: int) -> os.stat_result:
    """Return an open file's state; refuse what is no regular file, or has a second name.

    A hard link may be another name of a file outside.
    """
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise rejected("Skill file path does not name a regular file")
    if state.st_nlink > 1:
        raise rejected(ESCAPES)
    return state


def missing(path: str) -> ExecutionFailed:
    """Make the error for a file that is not there."""
    return ExecutionFailed(f"File not found: {path}", code=ErrorCode.FILE_NOT_FOUND)


@cache
def libc() -> ctypes.CDLL:
    """Return the C library of this process, its errno kept per thread."""
    return ctypes.CDLL(None, use_errno=True)


@cache
def has_openat2() -> bool:
    """Ask the kernel once whether it has ``openat2`` and lets this process call it."""
    if platform.system() != "Linux":
        return False
    here = os.open("/", FOLDER)
    try:
        os.close(openat2(here, ".", FOLDER))
    except OSError:
        return False
    finally:
        os.close(here)
    return True
