"""Commands about executions. They work on the database, as those of `operate` do."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from dispatcher.cli import datadir, show
from dispatcher.cli.operate import ACTOR, AsJson, DataDir, Owner, addresses
from dispatcher.waits import CANCEL_WAIT_S
from shared import logging
from shared.history import Filter
from shared.models import Execution
from shared.settings import load
from shared.states import Status

if TYPE_CHECKING:
    from dispatcher.dispatcher import Dispatcher

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    executions = typer.Typer(help="Executions of skills.", no_args_is_help=True)
    executions.command("list")(listed)
    executions.command("show")(shown)
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
    found = with_dispatcher(
        data_dir, lambda dispatcher: dispatcher.cancel(execution_id, actor=ACTOR, wait_s=wait)
    )
    if as_json:
        show.as_text(found.wire())
    else:
        show.rows([row(found)])
    if not found.finished:
        show.talk("It still runs; its worker has been told to stop it.")


def listed(
    owner: Owner = None,
    skill: Annotated[str | None, typer.Option("--skill", help="A skill's name.")] = None,
    status: Annotated[Status | None, typer.Option("--status", help="One status only.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200)] = 50,
    data_dir: DataDir = datadir.DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List executions, newest first."""
    narrowed = Filter(owner=owner, skill_name=skill, status=status)

    async def read(dispatcher: "Dispatcher") -> list[Execution]:
        found = await dispatcher.list(narrowed, limit=limit)
        return await dispatcher.reasons.explained(found)

    found = with_dispatcher(data_dir, read)
    if as_json:
        show.as_text([execution.wire() for execution in found])
    else:
        show.rows([{**row(execution), "reason": reason(execution)} for execution in found])


def shown(
    execution_id: Annotated[UUID, typer.Argument(help="The execution's id.")],
    data_dir: DataDir = datadir.DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show an execution, and why it is pending if it is."""

    async def read(dispatcher: "Dispatcher") -> Execution:
        (found,) = await dispatcher.reasons.explained([await dispatcher.get(execution_id)])
        return found

    found = with_dispatcher(data_dir, read)
    if as_json:
        show.as_text(found.wire())
    else:
        show.rows([{"field": name, "value": value} for name, value in found.wire().items()])
    if found.pending_reason:
        show.talk(f"{found.pending_reason.message}.")


def reason(execution: Execution) -> str | None:
    """Return what a table shows of why an execution is pending."""
    return execution.pending_reason.code if execution.pending_reason else None


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


def with_dispatcher(data_dir: Path, use: "Callable[[Dispatcher], Awaitable[T]]") -> T:
    """Use a dispatcher of this process's own."""

    async def run() -> T:
        from dispatcher.dispatcher import Dispatcher

        settings = load(**addresses(data_dir))
        logging.configure(settings, "cli")
        async with Dispatcher.open(settings) as dispatcher:
            return await use(dispatcher)

    return asyncio.run(run())
