"""The command `skillfleet` and its exit statuses."""

import sys
from enum import IntEnum

import typer

from dispatcher.cli import executions, operate, pauses, serve, show, views
from shared.errors import BadRequest, ConfigurationError, InvalidInput, SkillfleetError


class Exit(IntEnum):
    """What the shell is told."""

    OK = 0
    FAILED = 1
    USAGE = 2
    TIMEOUT = 3
    UNAVAILABLE = 4


EPILOG = """Exit status: 0 ok, 1 failed, 2 wrong usage or settings, 3 time limit reached,
4 something needed is not available."""

app = typer.Typer(
    name="skillfleet",
    help="Run LLM skills outside the gateway: a dispatcher, workers, sandboxes.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve.register(app)
operate.register(app)
executions.register(app)
pauses.register(app)
views.register(app)


def run() -> None:
    """Run the command line; errors are one message on stderr and an exit status."""
    try:
        app()
    except SkillfleetError as error:
        show.talk(f"skillfleet: {error.message}")
        for violation in getattr(error, "violations", ()):
            show.talk(f"  {violation['pointer'] or '/'}: {violation['message']}")
        sys.exit(status(error))
    except KeyboardInterrupt:
        sys.exit(128 + 2)  # as a shell reports SIGINT


def status(error: SkillfleetError) -> Exit:
    """Return the exit status that an error means."""
    if isinstance(error, ConfigurationError | BadRequest | InvalidInput):
        return Exit.USAGE
    if error.retryable or error.code in {"unavailable", "conflict"}:
        return Exit.UNAVAILABLE
    return Exit.FAILED


if __name__ == "__main__":
    run()
