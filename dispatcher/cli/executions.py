"""Commands about executions. They work on the database, as those of `operate` do."""

import asyncio
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from dispatcher.cli import datadir, show
from dispatcher.cli.operate import ACTOR, AsJson, DataDir, addresses
from dispatcher.waits import CANCEL_WAIT_S
from shared import logging
from shared.models import Execution
from shared.settings import load


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    executions = typer.Typer(help="Executions of skills.", no_args_is_help=True)
    executions.callback()(lambda: None)  # a group, though it has one command as yet
    executions.command("cancel")(cancel)
    app.add_typer(executions, name="executions")


def cancel(
    execution_id: Annotated[UUID, typer.Argument(help="The execution's id.")],
    wait: Annotated[
        float, typer.Option(min=0, max=120, help="Seconds to wait for one that runs to end.")
    ] = CANCEL_WAIT_S,
    data_dir: DataDir = datadir.DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Cancel an execution: at once when it waits, through its worker when it runs."""
    found = asyncio.run(cancelled(execution_id, wait, data_dir))
    if as_json:
        show.as_text(found.wire())
    else:
        show.rows([row(found)])
    if not found.finished:
        show.talk("It still runs; its worker has been told to stop it.")


async def cancelled(execution_id: UUID, wait_s: float, data_dir: Path) -> Execution:
    """Cancel by a dispatcher of this process's own."""
    from dispatcher.dispatcher import Dispatcher

    settings = load(**addresses(data_dir))
    logging.configure(settings, "cli")
    async with Dispatcher.open(settings) as dispatcher:
        return await dispatcher.cancel(execution_id, actor=ACTOR, wait_s=wait_s)


def row(found: Execution) -> dict[str, Any]:
    """Return what a table shows of an execution."""
    return {
        "id": found.id,
        "skill": f"{found.skill_name}@{found.skill_version}",
        "owner": found.api_key_id,
        "status": found.status,
        "code": found.error_code,
        "attempt": found.attempt,
        "finished": found.finished_at,
    }
