"""Run JavaScript or Python in a fresh container and return what it prints.

The code runs without network unless the operator allows it, as a file in an empty working
directory that is gone afterwards; print what you want to see.
"""

from typing import Literal

from pydantic import Field

from worker.builtins._sandboxed import (
    SANDBOXED,
    SandboxedInput,
    SandboxedOutput,
    contained,
    fields_of,
    to_bytes,
    told,
)
from worker.context import Context
from worker.handlers import handler

Language = Literal["javascript", "js", "python", "py"]

NODE_BOOT = 'process.argv[1] = "/workspace/main.js"; require("module").runMain()'
"""With --eval node's own modules are globals (``fs``, ``path``); the code is a file all the same,
so its size has no limit but the input's and errors name its lines."""

JAVASCRIPT = ("node:22-alpine", "main.js", ("node", "--eval", NODE_BOOT))
PYTHON = ("python:3.12-alpine", "main.py", ("python3", "-u", "/workspace/main.py"))
"""Default image, the code's file name, command. Unbuffered: what was printed survives a kill."""

LANGUAGES = {"javascript": JAVASCRIPT, "js": JAVASCRIPT, "python": PYTHON, "py": PYTHON}


class EvalCode(SandboxedInput):
    """Code and the container that it runs in."""

    code: str = Field(description="The program's source.")
    language: Language = Field("javascript", description="The language that it is written in.")


class EvalCodeResult(SandboxedOutput):
    """How the code ended, and what it printed."""

    language: Language


@handler(
    "eval_code",
    policy="hybrid",
    description=__doc__,
    tags=("code", "javascript", "python", "sandbox"),
    **SANDBOXED,
)
async def eval_code(input: EvalCode, context: Context) -> EvalCodeResult:
    """Run the code; every ending but exit code 0 is raised, with the output."""
    default_image, name, command = LANGUAGES[input.language]
    image = (input.image or "").strip() or default_image
    result = await contained(
        input, context, image=image, command=command, own_files={name: to_bytes(input.code)}
    )
    fields = fields_of(result, image, asked_for_network=input.network_enabled)
    output = EvalCodeResult(language=input.language, **fields)
    told(result.cause, output)
    return output
