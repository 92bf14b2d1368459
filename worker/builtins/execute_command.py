"""Run one command with its arguments in a fresh container and return what it prints.

There is no shell unless you ask for one (`sh` with the arguments `-c` and the script), no network
unless the operator allows it, and nothing is kept afterwards.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from worker.builtins._sandboxed import (
    NO_NUL,
    SANDBOXED,
    SandboxedInput,
    SandboxedOutput,
    Text,
    contained,
    fields_of,
    told,
)
from worker.context import Context
from worker.handlers import handler

IMAGE = "alpine:3.20"
MAX_ARGUMENTS = 1024


class ExecuteCommand(SandboxedInput):
    """A command and the container that it runs in."""

    command: Annotated[str, StringConstraints(min_length=1, pattern=NO_NUL)] = Field(
        description="The program to run: a name on the PATH, or a path."
    )
    args: list[Text | int | float | bool] = Field(
        default_factory=list, max_length=MAX_ARGUMENTS, description="Its arguments, one by one."
    )


class ExecuteCommandResult(SandboxedOutput):
    """How the command ended, and what it printed."""

    command: str
    args: list[str]


@handler(
    "execute_command",
    policy="manual",
    description=__doc__,
    tags=("command", "shell", "sandbox"),
    **SANDBOXED,
)
async def execute_command(input: ExecuteCommand, context: Context) -> ExecuteCommandResult:
    """Run the command; every ending but exit code 0 is raised, with the output."""
    image = (input.image or "").strip() or IMAGE
    args = [as_text(value) for value in input.args]
    result = await contained(
        input, context, image=image, command=(input.command, *args), own_files={}
    )
    fields = fields_of(result, image, asked_for_network=input.network_enabled)
    output = ExecuteCommandResult(command=input.command, args=args, **fields)
    told(result.cause, output)
    return output


def as_text(value: str | float | bool) -> str:
    """Write an argument as JSON and JavaScript do: ``true``, ``1``, ``1.5``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
