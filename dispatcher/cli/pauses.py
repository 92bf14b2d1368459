"""``skillfleet pauses``: hold a queue, a skill or an owner back, and let it go on."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import asyncpg
import typer

from dispatcher.cli import datadir, show
from dispatcher.cli.operate import ACTOR, AsJson, DataDir, Doors, with_doors
from shared import pauses
from shared.db import Pool
from shared.errors import InvalidInput, NotFound
from shared.models import QUEUES
from shared.pauses import KINDS, Kind

Act = Callable[["Pool[asyncpg.Record]", Kind, str, str], Awaitable[bool]]
KindName = Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")]
Name = Annotated[str, typer.Argument(help="The queue's or skill's name, or the owner's key id.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Queues, skills and owners that are paused.", no_args_is_help=True)
    group.command("list")(pauses_list)
    group.command("add")(pauses_add)
    group.command("remove")(pauses_remove)
    app.add_typer(group, name="pauses")


def pauses_list(data_dir: DataDir = datadir.DEFAULT, as_json: AsJson = False) -> None:
    """Show what is paused, by kind and name."""
    found = with_doors(data_dir, lambda doors: pauses.listed(doors.pool))
    rows = [
        {"kind": p.kind, "name": p.name, "pausedAt": p.paused_at, "pausedBy": p.paused_by}
        for p in found
    ]
    show.rows(rows, as_json=as_json)


def pauses_add(kind: KindName, name: Name, data_dir: DataDir = datadir.DEFAULT) -> None:
    """Pause it: its executions wait, what runs goes on."""
    done = changed(data_dir, pauses.pause, known(kind), name)
    show.talk(f"The {kind} {name} is paused." if done else f"The {kind} {name} was paused already.")


def pauses_remove(kind: KindName, name: Name, data_dir: DataDir = datadir.DEFAULT) -> None:
    """Let it go on; its executions start within seconds."""
    if not changed(data_dir, pauses.resume, known(kind), name):
        raise NotFound(f"The {kind} {name} is not paused. `skillfleet pauses list` shows what is")
    show.talk(f"The {kind} {name} goes on.")


def queue_pause(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(QUEUES)}.")],
    data_dir: DataDir = datadir.DEFAULT,
) -> None:
    """Pause a queue: nothing of it starts, what runs goes on."""
    pauses_add("queue", name, data_dir)


def queue_resume(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(QUEUES)}.")],
    data_dir: DataDir = datadir.DEFAULT,
) -> None:
    """Let a queue go on; its executions start within seconds."""
    pauses_remove("queue", name, data_dir)


def changed(data_dir: Path, act: Act, kind: Kind, name: str) -> bool:
    """Pause or resume it and tell the fleet; False when it was so already."""

    async def change(doors: Doors) -> bool:
        done = await act(doors.pool, kind, name, ACTOR)
        await doors.registry.changed()
        return done

    return with_doors(data_dir, change)


def known(kind: str) -> Kind:
    """Return the kind; raise InvalidInput for one that there is not."""
    if kind not in KINDS:
        raise InvalidInput(f"There is no kind {kind}. Use one of {', '.join(KINDS)}")
    return kind
