"""How a run ended: one place turns what was seen into a cause. Pure."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.sandbox.output import OutputFile, Reply

SIGNAL_BASE = 128
UNTOLD = frozenset({SIGNAL_BASE + signal.SIGINT, SIGNAL_BASE + signal.SIGPIPE})
"""Shells don't say so when a child dies of these two; the exit code alone has to do."""


class Cause(StrEnum):
    """Why it is over."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    ENGINE_LOST = "engine_lost"
    UNUSABLE_IMAGE = "unusable_image"


class Stop(StrEnum):
    """Why we ended it ourselves."""

    DEADLINE = "deadline"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """One run. ``killed``: by a signal of ours; ``exit_code`` None: it never got so far."""

    cause: Cause
    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    duration_ms: int
    killed: bool
    timed_out: bool
    oom_killed: bool
    network_enabled: bool
    files: Mapping[str, OutputFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run left behind for judgement.

    ``state`` is the engine's account of the container; it is asked for only when the ending did
    not come in-band, and None when the container was gone by then. ``lost``: the engine went away.
    """

    reply: Reply
    stop: Stop | None = None
    state: Mapping[str, Any] | None = None
    lost: bool = False


def judge(seen: Seen) -> tuple[Cause, int | None, str | None]:
    """Return the cause, the exit code and the signal's name.

    Our own deadline wins over any exit code (a program may answer SIGTERM with 0), 137 alone is
    never taken for lack of memory, and the end of the streams alone never for success.
    """
    code, name = exit_of(seen)
    ending = seen.reply.ending
    if seen.stop:
        return STOPPED[seen.stop], code, name
    if ending is not None:
        if ending.code is None:
            return Cause.UNUSABLE_IMAGE, None, None
        starved = ending.code != 0 and ending.oom_kills > 0
        return Cause.OUT_OF_MEMORY if starved else Cause.EXITED, code, name
    if seen.lost or (seen.state and seen.state.get("Running")):
        return Cause.ENGINE_LOST, None, None
    if seen.state is None:
        return Cause.KILLED, code, name
    if seen.state.get("OOMKilled"):
        return Cause.OUT_OF_MEMORY, code, name
    if code in (125, 126, 127):
        return Cause.UNUSABLE_IMAGE, None, None
    return Cause.KILLED, code, name


STOPPED = {
    Stop.DEADLINE: Cause.TIMEOUT,
    Stop.OUTPUT_LIMIT: Cause.OUTPUT_LIMIT,
    Stop.KILLED: Cause.KILLED,
}


def exit_of(seen: Seen) -> tuple[int | None, str | None]:
    """Return the exit code and the signal's name, in-band first, else by the engine's account."""
    ending = seen.reply.ending
    if ending is not None and ending.code is not None:
        by_signal = ending.signalled or ending.code in UNTOLD
        return ending.code, signal_name(ending.code) if by_signal else None
    if seen.state is not None and not seen.state.get("Running"):
        code = int(seen.state.get("ExitCode", 0))
        return code, signal_name(code)
    if seen.lost:
        return None, None
    # The container is gone, or did not end in time after SIGKILL: nothing else removes it.
    killed = SIGNAL_BASE + signal.SIGKILL
    return killed, signal_name(killed)


def signal_name(code: int) -> str | None:
    """Name the signal in an exit code above 128, as a shell reports it."""
    if code <= SIGNAL_BASE:
        return None
    try:
        return signal.Signals(code - SIGNAL_BASE).name
    except ValueError:
        return f"SIG{code - SIGNAL_BASE}"


def conclude(
    seen: Seen, *, duration_ms: int, network: bool, output_files: tuple[str, ...] = ()
) -> SandboxResult:
    """Put the result together."""
    cause, code, name = judge(seen)
    ending = seen.reply.ending
    files = dict(zip(output_files, ending.files, strict=False)) if ending else {}
    starved = bool(ending and ending.oom_kills) or bool(seen.state and seen.state.get("OOMKilled"))
    return SandboxResult(
        cause=cause,
        exit_code=code,
        signal=name,
        stdout=seen.reply.stdout.text,
        stderr=seen.reply.stderr.text,
        stdout_truncated=seen.reply.stdout.truncated,
        stderr_truncated=seen.reply.stderr.truncated,
        duration_ms=duration_ms,
        killed=seen.stop is not None,
        timed_out=seen.stop is Stop.DEADLINE,
        oom_killed=starved,
        network_enabled=network,
        files=files,
    )
