"""The data directory of `up`: who holds it, and the credentials it keeps."""

import contextlib
import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic.alias_generators import to_camel, to_snake

from shared.errors import ErrorCode, SkillfleetError

DEFAULT = Path(".skillfleet")
LEFTOVER_S = 60.0
"""How long processes of an `up` that was killed may take to end by themselves."""


class DataDirBusy(SkillfleetError):
    """Another `up` runs on this data directory."""

    code = ErrorCode.CONFLICT


@dataclass(frozen=True, slots=True)
class Credentials:
    """What ``credentials.json`` holds, readable by its owner only."""

    url: str
    management_token: str
    api_key: str
    api_key_id: str
    database_url: str
    redis_url: str


def prepare(data_dir: Path) -> Path:
    """Make the folder, private to its owner, and return its absolute path."""
    folder = data_dir.expanduser().resolve()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SkillfleetError(
            f"The data directory {folder} can't be made: {error.strerror}. Choose another one "
            "with --data-dir"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SkillfleetError(
            f"The data directory {folder} is not writable for this user. Choose another one "
            "with --data-dir, or start as its owner"
        )
    return folder


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[int]:
    """Hold the directory; yield the lock's file descriptor, to be inherited by every child.

    An inherited lock is held until the last child is gone. So when an `up` was killed, the next one
    waits here for what it started, instead of running beside it on the same data.
    """
    descriptor = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        take(descriptor, data_dir)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def take(descriptor: int, data_dir: Path) -> None:
    """Take the lock, if need be after leftovers of a killed `up` ended; or raise DataDirBusy."""
    end = time.monotonic() + LEFTOVER_S
    told = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        holder = os.pread(descriptor, 32, 0).decode().strip()
        if holder.isdigit() and alive(int(holder)):
            raise DataDirBusy(
                f"Another `skillfleet up` (process {holder}) runs on {data_dir}. Stop it first, "
                "or choose another folder with --data-dir"
            )
        if time.monotonic() > end:
            raise DataDirBusy(
                f"Processes of an earlier `skillfleet up` still run on {data_dir}. "
                f"End them (`fuser {data_dir / 'up.lock'}` lists them), then start again"
            )
        if not told:
            print("Waiting for the processes of an earlier `up` to end ...", file=sys.stderr)
            told = True
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Tell whether a process with that number runs; one that nobody reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # gone by now, or no Linux
        return sys.platform != "linux"
    return state != "Z"


def load(data_dir: Path) -> Credentials | None:
    """Return the credentials a former `up` wrote; None when there are none, or no complete ones."""
    try:
        found = json.loads((data_dir / "credentials.json").read_text())
        return Credentials(**{to_snake(name): str(value) for name, value in found.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def save(data_dir: Path, credentials: Credentials) -> Path:
    """Write the credentials, mode 0600, all or nothing; return the file's path."""
    path = data_dir / "credentials.json"
    text = json.dumps(
        {to_camel(name): value for name, value in asdict(credentials).items()}, indent=2
    )
    draft = path.with_name(f".credentials-{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    draft.replace(path)
    return path


def new_token() -> str:
    """Return a management token that can't be guessed."""
    return f"sfm_{secrets.token_urlsafe(32)}"
