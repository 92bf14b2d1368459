"""Commands that run things: up, dispatcher, worker, migrate."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dispatcher.cli import datadir, show
from shared.settings import load


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(dispatcher)
    app.command()(worker)
    app.command()(migrate)


def up(
    port: Annotated[
        int,
        typer.Option(
            envvar="SKILLS_HTTP_PORT", min=0, max=65535, help="Port of the API; 0 takes a free one."
        ),
    ] = 20128,
    host: Annotated[
        str, typer.Option(envvar="SKILLS_HTTP_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    data_dir: Annotated[
        Path,
        typer.Option(
            envvar=["SKILLS_DATA_DIR", "DATA_DIR"],
            help="Folder of the databases, workspaces, logs, credentials.",
        ),
    ] = datadir.DEFAULT,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    database_url: Annotated[
        str | None,
        typer.Option(
            envvar="SKILLS_DATABASE_URL", help="A Postgres of yours; none is embedded then."
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            envvar="SKILLS_REDIS_URL", help="A Redis or Valkey of yours; none is embedded then."
        ),
    ] = None,
    tour: Annotated[
        bool, typer.Option("--tour", help="Run some real executions and show them.")
    ] = False,
    exit_after_tour: Annotated[
        bool,
        typer.Option("--exit-after-tour", help="Stop after the tour; status 1 if a row is wrong."),
    ] = False,
) -> None:
    """Start a whole fleet on this machine and stay up until Ctrl-C.

    Without --database-url and --redis-url it brings its own, with their data in the data directory.
    """
    from dispatcher.cli.up import Options, run

    options = Options(
        host=host,
        port=port,
        data_dir=data_dir,
        workers=workers,
        database_url=database_url,
        redis_url=redis_url,
        tour=tour or exit_after_tour,
        exit_after_tour=exit_after_tour,
    )
    raise typer.Exit(run(options, show.console()))


def dispatcher() -> None:
    """Run one dispatcher; everything is set by SKILLS_* variables."""
    become("dispatcher")


def worker() -> None:
    """Run one worker; everything is set by SKILLS_* variables."""
    become("worker")


def migrate() -> None:
    """Bring the database at SKILLS_DATABASE_URL to this program's schema; safe to run twice."""
    from shared.migrate import migrate as upgrade

    print(upgrade(load().database.url))


def become(room: str) -> NoReturn:
    """Replace this process by the room, so that signals reach it directly."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", room])  # noqa: S606  # no shell is wanted
