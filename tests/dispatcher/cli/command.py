"""The command `skillfleet` as a process, as a user runs it."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

COMMAND = [sys.executable, "-m", "dispatcher.cli.main"]
DONE_S = 60.0


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without settings of ours, plus ``variables``."""
    own = re.compile(r"SKILLS_|DATA_DIR$")
    return {
        **{k: v for k, v in os.environ.items() if not own.match(k)},
        "NO_COLOR": "1",
        **variables,
    }


def skillfleet(
    *arguments: str, env: Mapping[str, str] | None = None, deadline_s: float = DONE_S
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )


def skillfleet_in_background(
    *arguments: str, output: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start it; stdout and stderr go to the file."""
    with output.open("wb") as file:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
