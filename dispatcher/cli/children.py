"""Child processes: started in their own group, logged to a file, stopped by their pid."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.cli.privileges import Account, before_exec
from shared.errors import ErrorCode, SkillfleetError

TAIL_LINES = 20


class ChildFailed(SkillfleetError):
    """A process that was started ended, or was not ready in time; carries its last log lines."""

    code = ErrorCode.UNAVAILABLE


@dataclass(slots=True, kw_only=True)
class Child:
    """One process. ``grace_s`` is what it gets between its stop signal and SIGKILL.

    A group of its own keeps a terminal's Ctrl-C from it: the parent decides the order of stopping.
    ``lock`` is a file descriptor it inherits, so that the lock is held as long as it lives.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 10.0
    account: Account | None = None
    lock: int | None = None
    starts: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    log_start: int = 0

    def start(self) -> None:
        """Start it; output is appended to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                list(self.argv),
                env=None if self.env is None else dict(self.env),
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=() if self.lock is None else (self.lock,),
                # safe: started from the main thread, and `up` has no other
                preexec_fn=before_exec(self.stop_signal, self.account),  # noqa: PLW1509
            )
        self.starts.append(time.monotonic())

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs or when it was never started."""
        return None if self.process is None else self.process.poll()

    def check(self) -> None:
        """Raise ChildFailed when it has ended."""
        code = self.exit_code()
        if code is not None:
            raise ChildFailed(f"{self.name} ended with {told(code)}.\n{self.tail()}")

    def ask_to_stop(self) -> None:
        """Send the stop signal, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)

    def wait(self, deadline_s: float) -> bool:
        """Wait for its end; tell whether it came."""
        if self.process is None:
            return True
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it without asking."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> bool:
        """Ask, wait for ``grace_s``, then kill; tell whether it went by itself."""
        self.ask_to_stop()
        went = self.wait(self.grace_s)
        if not went:
            self.kill()
        return went

    def tail(self) -> str:
        """Return the last lines it logged since its last start."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        shown = "\n".join(f"  {line}" for line in lines) or "  (it logged nothing)"
        return f"The end of {self.log}:\n{shown}"


def told(code: int) -> str:
    """Say how a process ended: its exit status, or the signal's name."""
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def room_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with ``settings`` on top, for ``python -m <room>``."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **settings}
