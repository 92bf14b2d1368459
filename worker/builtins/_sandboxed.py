"""What ``eval_code`` and ``execute_command`` share: inputs, limits, and how an ending is told."""

import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from shared.errors import EngineLost, ErrorCode, ExecutionFailed, ExecutionTimedOut
from worker.context import Context
from worker.sandbox.outcome import Cause, SandboxResult
from worker.sandbox.output import OutputFile
from worker.sandbox.spec import SandboxConfig

MAX_TIMEOUT_MS = 60_000
MAX_FILES = 64
MAX_NAME_BYTES = 255
"""The kernel's limit for one segment of a path."""

NETWORKLESS: dict[str, Any] = {
    "not": {"required": ["networkEnabled"], "properties": {"networkEnabled": {"const": True}}}
}
"""Inputs that may safely run twice: whatever they do is gone with the container."""

SANDBOXED: dict[str, Any] = {
    "queue": "sandbox",
    "timeout_ms": lambda settings: settings.sandbox.timeout_ms,
    "max_timeout_ms": MAX_TIMEOUT_MS,
    "timeout_input": "timeoutMs",
    "keeps_deadline": True,
    "idempotent": NETWORKLESS,
    "builtin": True,
}
"""What every handler declares that runs its call in a container."""

NO_NETWORK_NOTE = (
    "The call asked for network access, which this fleet does not give: it ran without. "
    "An operator can open it with SKILLS_SANDBOX_NETWORK_ENABLED=true"
)

NO_OTHER_NAMES: dict[str, Any] = {"additionalProperties": False}
"""pydantic writes the pattern of a key as patternProperties, which alone refuses nothing."""

Encoding = Literal["utf8", "base64"]
NO_NUL = r"^[^\x00]*$"
Text = Annotated[str, StringConstraints(pattern=NO_NUL)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
FilePath = Annotated[str, StringConstraints(pattern=NO_NUL, min_length=1, max_length=512)]


class Wire(BaseModel):
    """camelCase on the wire, snake_case here; a field that is not known is refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class InputFile(Wire):
    """A file that is not text."""

    content: str
    encoding: Encoding = "utf8"


class SandboxedInput(Wire):
    """The options of a container."""

    image: str | None = Field(None, description="Container image, from the operator's allowlist.")
    timeout_ms: int | None = Field(
        None, ge=1, description="Time limit in milliseconds; above 60000 it is 60000."
    )
    network_enabled: bool = Field(
        default=False, description="Ask for network access; only given if the operator allows it."
    )
    stdin: str | None = Field(None, description="Text for the program's standard input.")
    files: dict[FilePath, str | InputFile] = Field(
        default_factory=dict,
        max_length=MAX_FILES,
        json_schema_extra=NO_OTHER_NAMES,
        description="Files to put into the working directory first: path to content.",
    )
    output_files: list[FilePath] = Field(
        default_factory=list,
        max_length=MAX_FILES,
        description="Paths of files to return from the working directory afterwards.",
    )
    env: dict[EnvName, Text] = Field(
        default_factory=dict,
        max_length=MAX_FILES,
        json_schema_extra=NO_OTHER_NAMES,
        description="Environment variables.",
    )
    cpu_limit: int | None = Field(None, ge=10, description="Thousandths of a CPU; default 100.")
    memory_limit: int | None = Field(None, ge=6, description="Memory in MB; default 256.")

    @field_validator("timeout_ms")
    @classmethod
    def clamped(cls, value: int | None) -> int | None:
        """Keep the time limit within its maximum."""
        return None if value is None else min(value, MAX_TIMEOUT_MS)


class ReturnedFile(Wire):
    """A file that was asked for; without content, ``error`` says why."""

    path: str
    content: str | None = None
    encoding: Encoding = "utf8"
    bytes_read: int = 0
    error: str | None = None


class SandboxedOutput(Wire):
    """How a program in a container ended, and what it wrote."""

    success: bool = Field(description="Whether the program ended with exit code 0.")
    image: str
    exit_code: int | None
    signal: str | None = Field(description="Name of the signal that ended the program.")
    stdout: str
    stderr: str
    output: str = Field(description="The same as stdout.")
    truncated: bool = Field(description="Whether stdout or stderr was cut.")
    stdout_truncated: bool
    stderr_truncated: bool
    duration_ms: int
    killed: bool = Field(description="Stopped by us: time limit, cancellation or output limit.")
    timed_out: bool
    oom_killed: bool = Field(description="Whether a process was ended for want of memory.")
    network_enabled: bool = Field(description="Whether it really had network access.")
    output_files: list[ReturnedFile] = Field(default_factory=list)
    note: str | None = None


async def contained(
    input: SandboxedInput,
    context: Context,
    *,
    image: str,
    command: Sequence[str],
    own_files: Mapping[str, bytes],
) -> SandboxResult:
    """Run a command in a container of its own; ``own_files`` are ours, beside the caller's."""
    files = {**files_of(input, own_files), **own_files}
    stdin = None if input.stdin is None else to_bytes(input.stdin)
    for path in input.output_files:
        require_inside(path)
    return await context.sandbox.run(
        image,
        command,
        input.env,
        config_of(input, context),
        execution_id=context.execution_id,
        deadline=context.deadline,
        stdin=stdin,
        files=files,
        output_files=input.output_files,
    )


def config_of(input: SandboxedInput, context: Context) -> SandboxConfig:
    """Take the caller's limits where the operator's maxima allow them; raise ExecutionFailed."""
    default, maxima = SandboxConfig(), context.settings.sandbox
    cpu = input.cpu_limit or min(default.cpuLimit, maxima.max_cpu_limit)
    memory = input.memory_limit or min(default.memoryLimit, maxima.max_memory_limit)
    for name, value, most in (
        ("cpuLimit", cpu, maxima.max_cpu_limit),
        ("memoryLimit", memory, maxima.max_memory_limit),
    ):
        if value > most:
            raise invalid(f"{name} may be at most {most} in this fleet, not {value}")
    return SandboxConfig(
        cpuLimit=cpu,
        memoryLimit=memory,
        timeout=math.ceil(context.remaining_s() * 1000),
        networkEnabled=input.network_enabled,
        readOnly=True,
    )


def files_of(input: SandboxedInput, own: Mapping[str, bytes]) -> dict[str, bytes]:
    """Decode the caller's files; raise ExecutionFailed when one can't be put there."""
    files = {}
    for path, given in input.files.items():
        require_inside(path)
        encoded = isinstance(given, InputFile) and given.encoding == "base64"
        text = given.content if isinstance(given, InputFile) else given
        files[path] = from_base64(path, text) if encoded else to_bytes(text)
    taken = {*files, *own}
    for path in files:
        folders = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
        if path in own or taken.intersection(folders):
            raise invalid(f"files: {path!r} stands where another file is. Rename it")
    return files


def require_inside(path: str) -> None:
    """Raise ExecutionFailed unless a path is plain, relative, and stays below the directory."""
    segments = path.split("/")
    plain = all(segment not in ("", ".", "..") for segment in segments)
    if not plain or any(len(to_bytes(segment)) > MAX_NAME_BYTES for segment in segments):
        raise ExecutionFailed(
            f"Sandbox file paths must be relative to the working directory and plain: {path!r}",
            code=ErrorCode.PATH_REJECTED,
        )


def to_bytes(text: str) -> bytes:
    """Encode text; a lone surrogate goes through as it is, for the program to complain about."""
    return text.encode("utf-8", "surrogatepass")


def from_base64(path: str, text: str) -> bytes:
    """Decode a file's base64 strictly."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"files: {path!r} is not valid base64: {error}") from None


def fields_of(result: SandboxResult, image: str, *, asked_for_network: bool) -> dict[str, Any]:
    """Return the fields of SandboxedOutput that both skills fill alike."""
    return {
        "success": result.cause is Cause.EXITED and result.exit_code == 0,
        "image": image,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "output": result.stdout,
        "truncated": result.stdout_truncated or result.stderr_truncated,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "duration_ms": result.duration_ms,
        "killed": result.killed,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "network_enabled": result.network_enabled,
        "output_files": [returned(path, file) for path, file in result.files.items()],
        "note": NO_NETWORK_NOTE if asked_for_network and not result.network_enabled else None,
    }


def returned(path: str, file: OutputFile) -> ReturnedFile:
    """Put a file on the wire: as text when it is text, else as base64."""
    if file.found != "file":
        return ReturnedFile(path=path, bytes_read=0, error=WHY_NOT[file.found])
    try:
        if b"\0" in file.content:
            raise ValueError
        return ReturnedFile(path=path, content=file.content.decode(), bytes_read=file.size)
    except ValueError:
        content = binascii.b2a_base64(file.content, newline=False).decode()
        return ReturnedFile(path=path, content=content, encoding="base64", bytes_read=file.size)


WHY_NOT = {
    "missing": "The program left no such file",
    "unreadable": "This is not a readable file",
    "large": "The files asked for are larger than what may be returned",
}


def told(cause: Cause, output: SandboxedOutput) -> None:
    """Raise what the ending calls for, the output with it; return when the program succeeded."""
    data = output.model_dump(mode="json", by_alias=True)
    match cause:
        case Cause.TIMEOUT:
            raise ExecutionTimedOut(data)
        case Cause.ENGINE_LOST:
            raise EngineLost(
                "The container engine went away while the program ran; how it ended is not known. "
                "Try again when the engine is back",
                output=data,
            )
        case Cause.EXITED if output.success:
            return
        case Cause.EXITED:
            by = f" (signal {output.signal})" if output.signal else ""
            message = f"The program ended with exit code {output.exit_code}{by}"
            code = ErrorCode.NONZERO_EXIT
        case Cause.OUT_OF_MEMORY:
            message = "The program ran out of memory. Raise memoryLimit (MB), or let it use less"
            code = ErrorCode.OUT_OF_MEMORY
        case Cause.OUTPUT_LIMIT:
            message = "The program was stopped because it wrote too much. Let it print less"
            code = ErrorCode.OUTPUT_LIMIT
        case Cause.UNUSABLE_IMAGE:
            message = (
                f"Nothing can run in the image {output.image}: "
                "it must hold sh, head, tar, rm, env, cat and wc"
            )
            code = ErrorCode.IMAGE_UNAVAILABLE
        case Cause.KILLED:
            message = "The container was killed before the program ended"
            code = ErrorCode.KILLED
    raise ExecutionFailed(message, code=code, output=data)


def invalid(message: str) -> ExecutionFailed:
    """Say that the input can't be taken as it is."""
    return ExecutionFailed(message, code=ErrorCode.INVALID_INPUT)
