"""Commands that change a running fleet by its database: settings, keys, skills refresh.

They take effect everywhere at once: each write raises the registry's epoch and publishes it. The
database is the one of SKILLS_DATABASE_URL, else the one of the `up` on the data directory.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import asyncpg
import typer
from redis.asyncio import Redis

from dispatcher.cli import datadir, show
from shared import db, keys, live, logging, migrate, redis
from shared.db import Pool
from shared.errors import BadRequest, ConfigurationError, NotFound
from shared.keys import Key
from shared.registry import Registry
from shared.settings import load

ACTOR = "cli"
T = TypeVar("T")

DataDir = Annotated[
    Path,
    typer.Option(
        envvar=["SKILLS_DATA_DIR", "DATA_DIR"], help="Data directory of the `up` to talk to."
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", min=1, help="How many of its executions run at once."),
]
Rate = Annotated[
    int | None, typer.Option("--rate", min=1, help="How many it may submit in a minute.")
]
Weight = Annotated[
    float,
    typer.Option("--weight", min=0.01, max=100, help="Its share of the turns; 1 is everybody's."),
]
Owner = Annotated[str | None, typer.Option("--owner", help="A key's id; all owners by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@dataclass(frozen=True, slots=True)
class Doors:
    """What a command works with."""

    pool: "Pool[asyncpg.Record]"
    redis: Redis
    registry: Registry


def register(app: typer.Typer) -> None:
    """Add the groups of commands."""
    settings = typer.Typer(
        help="Run-time settings: in force everywhere at once.", no_args_is_help=True
    )
    settings.command("list")(settings_list)
    settings.command("set")(settings_set)
    app.add_typer(settings, name="settings")
    key = typer.Typer(help="API keys.", no_args_is_help=True)
    key.command("create")(keys_create)
    key.command("list")(keys_list)
    key.command("change")(keys_change)
    key.command("revoke")(keys_revoke)
    app.add_typer(key, name="keys")
    skill = typer.Typer(help="The registry of skills.", no_args_is_help=True)
    skill.command("refresh")(skills_refresh)
    app.add_typer(skill, name="skills")


def settings_list(data_dir: DataDir = datadir.DEFAULT, as_json: AsJson = False) -> None:
    """Show the run-time settings; secrets are masked."""
    found = with_doors(data_dir, lambda doors: live.read(doors.pool))
    show_settings(found, as_json=as_json)


def settings_set(
    name: Annotated[str, typer.Argument(help="For example skillsEnabled.")],
    value: Annotated[str, typer.Argument(help="JSON, or plain text; null restores the default.")],
    data_dir: DataDir = datadir.DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change one run-time setting and show all."""

    async def change(doors: Doors) -> live.LiveSettings:
        stored = await live.put(doors.pool, {name: parsed(value)}, ACTOR)
        await doors.registry.changed()
        return stored

    show_settings(with_doors(data_dir, change), as_json=as_json)


def keys_create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[
        list[str], typer.Option("--scope", help=f"Repeatable. One of {', '.join(keys.SCOPES)}.")
    ] = ["read:skills", "execute:skills"],  # noqa: B006  # typer reads it, nothing writes to it
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="Repeatable: skills it may see; none means all."),
    ] = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    weight: Weight = 1.0,
    data_dir: DataDir = datadir.DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make an API key. It is shown this once and stored as a hash."""

    async def make(doors: Doors) -> tuple[Key, str]:
        made = await keys.create(
            doors.pool,
            name,
            scope,
            allowed_skills=allow or None,
            concurrency_limit=concurrency,
            rate_limit=rate,
            weight=weight,
        )
        await doors.registry.changed()
        return made

    key, secret = with_doors(data_dir, make)
    if as_json:
        show.as_text({"id": key.id, "name": key.name, "scopes": sorted(key.scopes), "key": secret})
    else:
        print(secret)
        show.talk(f"Key {key.id} ({', '.join(sorted(key.scopes))}). It can't be shown again.")


def keys_list(data_dir: DataDir = datadir.DEFAULT, as_json: AsJson = False) -> None:
    """List the API keys, newest first."""
    found = with_doors(data_dir, lambda doors: keys.list_all(doors.pool))
    rows = [
        {
            "id": key.id,
            "name": key.name,
            "scopes": sorted(key.scopes),
            "allowedSkills": sorted(key.allowed_skills) if key.allowed_skills is not None else None,
            "concurrencyLimit": key.concurrency_limit,
            "rateLimit": key.rate_limit,
            "weight": key.weight,
            "createdAt": key.created_at,
            "expiresAt": key.expires_at,
            "revokedAt": key.revoked_at,
            "lastUsedAt": key.last_used_at,
        }
        for key in found
    ]
    show.rows(rows, as_json=as_json)


def keys_change(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    concurrency: Concurrency = None,
    rate: Rate = None,
    weight: Annotated[float | None, typer.Option(min=0.01, max=100)] = None,
    unlimited: Annotated[
        bool, typer.Option("--unlimited", help="Take both limits away first.")
    ] = False,
    data_dir: DataDir = datadir.DEFAULT,
) -> None:
    """Change what a key may have of the fleet, at once."""
    changes: dict[str, Any] = {"concurrency_limit": None, "rate_limit": None} if unlimited else {}
    asked = {"concurrency_limit": concurrency, "rate_limit": rate, "weight": weight}
    changes |= {name: value for name, value in asked.items() if value is not None}
    if not changes:
        raise BadRequest("Say what to change: --concurrency, --rate, --weight or --unlimited")

    async def change(doors: Doors) -> Key:
        changed = await keys.change(doors.pool, key_id, changes, ACTOR)
        await doors.registry.changed()
        return changed

    key = with_doors(data_dir, change)
    show.talk(
        f"Key {key.id}: concurrency {key.concurrency_limit or 'unlimited'}, "
        f"rate {key.rate_limit or 'unlimited'} a minute, weight {key.weight:g}."
    )


def keys_revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    data_dir: DataDir = datadir.DEFAULT,
) -> None:
    """Revoke an API key, for ever and at once."""

    async def end(doors: Doors) -> bool:
        done = await keys.revoke(doors.pool, key_id)
        await doors.registry.changed()
        return done

    if not with_doors(data_dir, end):
        raise NotFound(f"There is no key {key_id}. `skillfleet keys list` shows those there are")
    show.talk(f"Key {key_id} is revoked.")


def skills_refresh(data_dir: DataDir = datadir.DEFAULT) -> None:
    """Make every process load the registry anew, after changes to the tables by hand."""
    print(with_doors(data_dir, lambda doors: doors.registry.refresh()))


def with_doors(data_dir: Path, use: Callable[[Doors], Awaitable[T]]) -> T:
    """Open the database and Redis, run ``use`` with them, close them."""

    async def run() -> T:
        async with doors(data_dir) as opened:
            return await use(opened)

    return asyncio.run(run())


@asynccontextmanager
async def doors(data_dir: Path) -> AsyncIterator[Doors]:
    """Open the pools; refuse a schema that is older than this program."""
    settings = load(**addresses(data_dir))
    logging.configure(settings, "cli")  # to stderr: stdout is for data, such as a new key
    pool = await db.connect(settings, name="skillfleet-cli")
    client = redis.connect(settings)
    try:
        await migrate.require(pool)
        yield Doors(pool, client, Registry(pool, client, redis.Listener(client)))
    finally:
        await client.aclose()
        await db.close(pool)


def addresses(data_dir: Path) -> dict[str, dict[str, Any]]:
    """Return where Postgres and Redis are when the environment does not say it."""
    if os.environ.get("SKILLS_DATABASE_URL"):  # an empty one counts as none, as for `up`
        return {}
    found = datadir.load(data_dir)
    if found is None:
        raise ConfigurationError(
            f"Which fleet? SKILLS_DATABASE_URL is not set, and {data_dir} holds no "
            "credentials.json of a `skillfleet up`. Set the one, or name the other with --data-dir"
        )
    return {"database": {"url": found.database_url}, "redis": {"url": found.redis_url}}


def parsed(value: str) -> Any:
    """Read a value as JSON, or take it as the text it is."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def show_settings(found: live.LiveSettings, *, as_json: bool) -> None:
    """Print the settings without secrets."""
    wire = found.masked().wire()
    if as_json:
        show.as_text(wire)
    else:
        show.rows([{"setting": name, "value": json.dumps(value)} for name, value in wire.items()])
