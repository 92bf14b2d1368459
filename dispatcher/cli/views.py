"""Commands that look at the fleet: workers, queues, stats. They read its database."""

from typing import Annotated

import typer

from dispatcher.cli import datadir, pauses, show
from dispatcher.cli.operate import ACTOR, AsJson, DataDir, Doors, Owner, with_doors
from shared import erasures, figures
from shared.erasures import Erasure
from shared.figures import QueueFigures
from shared.models import QUEUES
from shared.queue import Queue
from shared.redis import AWAY


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("workers")(workers)
    app.command("stats")(stats)
    queue = typer.Typer(help="The queues of the fleet.", no_args_is_help=True)
    queue.command("list")(queue_list)
    queue.command("pause")(pauses.queue_pause)
    queue.command("resume")(pauses.queue_resume)
    app.add_typer(queue, name="queue")
    owner = typer.Typer(help="Owners of skills and executions.", no_args_is_help=True)
    owner.callback()(lambda: None)  # a group, though it has one command as yet
    owner.command("erase")(owner_erase)
    app.add_typer(owner, name="owners")


def workers(data_dir: DataDir = datadir.DEFAULT, as_json: AsJson = False) -> None:
    """Show the workers, those that are there first; the others stay for a day."""
    found = with_doors(data_dir, lambda doors: figures.workers(doors.pool))
    if as_json:
        show.as_text([worker.wire() for worker in found])
        return
    show.rows(
        [
            {
                "id": worker.id,
                "host": f"{worker.host}:{worker.pid}",
                "state": "live" if worker.live else "stopped" if worker.stopped_at else "lost",
                "consuming": worker.consuming,
                "queues": worker.queues,
                "running": f"{worker.running}/{worker.slots}",
                "per second": round(sum(worker.rates.values()), 1),
                "heard ms ago": worker.heartbeat_ms,
                "started": worker.started_at,
            }
            for worker in found
        ]
    )


def stats(
    owner: Owner = None, data_dir: DataDir = datadir.DEFAULT, as_json: AsJson = False
) -> None:
    """Show what waits, runs and ended lately."""
    found = with_doors(data_dir, lambda doors: figures.stats(doors.pool, owner)).wire()
    if as_json:
        show.as_text(found)
    else:
        show.rows([{"figure": name, "value": value} for name, value in found.items()])


def queue_list(data_dir: DataDir = datadir.DEFAULT, as_json: AsJson = False) -> None:
    """Show the queues: what waits, for how long, what runs, how fast it goes."""
    found = with_doors(data_dir, queues)
    if as_json:
        show.as_text([queue.wire() for queue in found])
    else:
        show.rows([queue.wire() for queue in found])


def owner_erase(
    owner: Annotated[str, typer.Argument(help="The owner: a key's id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = datadir.DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Erase all of an owner: executions, skills, workspace, key. It can't be taken back."""
    if not yes:
        typer.confirm(f"Erase everything of {owner}, for ever?", abort=True, err=True)

    async def ask(doors: Doors) -> Erasure:
        found = await erasures.request(doors.pool, owner, ACTOR)
        await doors.registry.changed()
        return found

    found = with_doors(data_dir, ask)
    if as_json:
        show.as_text(found.wire())
    else:
        show.talk(f"Asked for: the leading worker does it within seconds (erasure {found.id}).")


async def queues(doors: Doors) -> list[QueueFigures]:
    """Read the queues' figures; Redis may be away."""
    snapshot = await doors.registry.snapshot()
    try:
        parked = {name: await Queue(doors.redis).parked(name) for name in QUEUES}
    except AWAY:
        parked = None
    return await figures.queues(doors.pool, snapshot.pauses, parked)
