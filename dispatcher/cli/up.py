"""`skillfleet up`: the whole fleet on one machine, as the same processes a cluster runs."""

import asyncio
import errno
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import asyncpg
from rich.console import Console

from dispatcher.cli import datadir, embedded, ready, tour
from dispatcher.cli.datadir import Credentials
from dispatcher.cli.fleet import Fleet
from shared import db, keys, redis
from shared.errors import ConfigurationError, ErrorCode, SkillfleetError, Unavailable
from shared.migrate import migrate
from shared.settings import Settings, load

SAMPLES = "worker.samples"
"""Declares echo-handler and sleep-handler; started by name, never imported here."""
KEY_NAME = "up"
KEY_SCOPES = ("read:skills", "execute:skills", "write:skills")
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # looked up only


class PortInUse(SkillfleetError):
    """Something listens there already."""

    code = ErrorCode.UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says. A URL that is None is embedded."""

    host: str
    port: int
    data_dir: Path
    workers: int
    database_url: str | None
    redis_url: str | None
    tour: bool
    exit_after_tour: bool


def run(options: Options, console: Console) -> int:
    """Start everything, wait until it is ready, show the tour, stay; return the exit status.

    Ctrl-C, SIGTERM and SIGHUP stop all that was started. A room that is lost is started again; an
    embedded service that is lost ends it all.
    """
    load()  # a wrong setting is said before anything starts
    port = free_port(options.host, options.port)
    data_dir = datadir.prepare(options.data_dir)
    with datadir.locked(data_dir) as lock, signals():
        fleet = Fleet(console=console, data_dir=data_dir, lock=lock)
        passed = True
        try:
            settings = services(fleet, options, port)
            credentials = issue(settings, data_dir, address(options.host, port))
            sandbox = rooms(fleet, options, settings, credentials)
            if options.tour:
                passed = tour.run(credentials, sandbox, console)
            welcome(fleet, credentials, sandbox)
            if not options.exit_after_tour:
                fleet.watch()
        except KeyboardInterrupt:
            console.print("\nStopping ...")
        finally:
            fleet.stop()
        console.print("Stopped. Data and logs are kept in", str(data_dir), soft_wrap=True)
        return 0 if passed else 1


@contextmanager
def signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, until the end of the block."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(host: str, port: int) -> int:
    """Return the port to listen on (any free one for 0), before anything starts.

    Raises PortInUse, or ConfigurationError for a host that this machine does not have.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigurationError(
                    f"{host} is no address of this machine ({error.strerror}). "
                    "Choose another with --host, such as 127.0.0.1"
                ) from None
            raise PortInUse(
                f"Port {port} on {host} is in use or can't be had ({error.strerror}). Is another "
                "`skillfleet up` running there? Stop it, or choose another port, such as "
                f"--port {port + 1 if port < 65535 else 0}"
            ) from None
        return int(probe.getsockname()[1])


def address(host: str, port: int) -> str:
    """Return the URL under which this machine reaches the dispatcher."""
    host = ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def services(fleet: Fleet, options: Options, port: int) -> Settings:
    """Start what is embedded, check what is not, migrate; return the settings of the rooms."""
    console = fleet.console
    if not options.database_url or not options.redis_url:
        with console.status("Starting the embedded services"):
            started = embedded.start(
                fleet.data_dir,
                postgres=not options.database_url,
                valkey=not options.redis_url,
                lock=fleet.lock,
            )
        fleet.backing = started.children
        console.print("Started", " and ".join(child.name for child in reversed(started.children)))
    database_url = options.database_url or started.database_url
    redis_url = options.redis_url or started.redis_url
    settings = load(
        database={"url": database_url},
        redis={"url": redis_url},
        data={"dir": fleet.data_dir},
        http={"host": options.host, "port": port},
    )
    asyncio.run(reachable(settings))
    console.print(f"Schema at revision {migrate(settings.database.url)}")
    return settings


async def reachable(settings: Settings) -> None:
    """Raise Unavailable or ConfigurationError, saying which service does not answer."""
    pool = await db.connect(settings, name="skillfleet-up")
    await db.close(pool)
    client = redis.connect(settings)
    try:
        await client.ping()
    except redis.AWAY as error:
        raise Unavailable(
            f"Redis can't be reached ({error}). Check SKILLS_REDIS_URL or --redis-url, and it"
        ) from None
    finally:
        await client.aclose()


def issue(settings: Settings, data_dir: Path, url: str) -> Credentials:
    """Write the credentials, those of the former `up` as far as they still count."""
    former = datadir.load(data_dir)
    given = settings.management.token
    token = given.get_secret_value() if given else former and former.management_token
    key_id, key = asyncio.run(usable_key(settings, former))
    credentials = Credentials(
        url=url,
        management_token=token or datadir.new_token(),
        api_key=key,
        api_key_id=key_id,
        database_url=settings.database.url,
        redis_url=settings.redis.url,
    )
    datadir.save(data_dir, credentials)
    return credentials


async def usable_key(settings: Settings, former: Credentials | None) -> tuple[str, str]:
    """Return the id and secret of the former key while this database takes it, else a new one."""
    pool: asyncpg.Pool[Any] = await db.connect(settings, name="skillfleet-up")
    try:
        if former:
            known = await keys.find(pool, former.api_key)
            if known and known.usable() and known.id == former.api_key_id:
                return known.id, former.api_key
        key, secret = await keys.create(pool, KEY_NAME, KEY_SCOPES)
        return key.id, secret
    finally:
        await db.close(pool)


def rooms(
    fleet: Fleet, options: Options, settings: Settings, credentials: Credentials
) -> ready.Sandbox:
    """Start the dispatcher and the workers as processes, and wait until they can work."""
    modules = dict.fromkeys((*settings.handler.modules, SAMPLES))
    environment = {
        "SKILLS_DATABASE_URL": settings.database.url,
        "SKILLS_REDIS_URL": settings.redis.url,
        "SKILLS_DATA_DIR": str(fleet.data_dir),
        "SKILLS_HTTP_HOST": options.host,
        "SKILLS_HTTP_PORT": str(settings.http.port),
        "SKILLS_MANAGEMENT_TOKEN": credentials.management_token,
        "SKILLS_HANDLER_MODULES": ",".join(modules),
        "SKILLS_LOG_FORMAT": "json",
    }
    fleet.start_dispatcher(environment)
    fleet.start_workers(options.workers, environment, settings.worker.grace_ms / 1000)
    sandbox = ready.wait(fleet, credentials.url, settings.database.url)
    many = "1 worker" if options.workers == 1 else f"{options.workers} workers"
    fleet.console.print(f"Ready: dispatcher and {many}. {sandbox}", soft_wrap=True)
    return sandbox


def welcome(fleet: Fleet, credentials: Credentials, sandbox: ready.Sandbox) -> None:
    """Say where everything is and what to try next."""
    path = fleet.data_dir / "credentials.json"
    skill, body = (
        ("eval_code", '{"language": "python", "code": "print(6*7)"}')
        if sandbox.runs
        else ("file_read", '{"path": "tour/hello.txt"}')
    )
    lines = [
        "",
        f"API           {credentials.url}",
        f"Reference     {credentials.url}/docs",
        f"Credentials   {path}",
        f"Logs          {fleet.data_dir / 'logs'}",
        "",
        "Try next:",
        f"""  KEY=$(sed -n 's/.*"apiKey": "\\(.*\\)".*/\\1/p' '{path}')""",
        f"  curl -s {credentials.url}/api/skills/executions \\",
        '    -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\',
        f"""    -d '{{"skillName": "{skill}", "input": {body}}}'""",
        "",
        "Ctrl-C stops everything.",
    ]
    for line in lines:
        fleet.console.print(line, markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()
