"""An environment of its own for every peer, under ``.bench/``: their requirements conflict."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".bench"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "arq": ("arq==0.28.0", "redis[hiredis]==5.3.1", "asyncpg==0.32.0", "orjson", "uvloop==0.23.0"),
    "saq": ("saq[redis,hiredis]==0.26.4", "orjson", "typing_extensions", "uvloop==0.23.0"),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis", "uvloop==0.23.0"),
    "streaq": ("streaq==7.2.0", "uvloop==0.23.0"),
    "rq": ("rq==3.0.0", "redis[hiredis]==8.1.0"),
    "celery": ("celery[redis]==5.7.0",),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary]==3.3.9", "uvloop==0.23.0"),
}


class Unmade(Exception):
    """An environment could not be made; the text says why."""


def interpreter(peer: str) -> Path:
    """Return the peer's interpreter, its environment made if it is not there; raise Unmade."""
    folder = FOLDER / peer
    mark, wanted = folder / "requirements", "\n".join(REQUIREMENTS[peer])
    python = folder / "bin" / "python"
    if mark.exists() and mark.read_text() == wanted and python.exists():
        return python
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         *REQUIREMENTS[peer]],
    )  # fmt: skip
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Unmade(words[-1] if words else f"{command[0]} failed")
    mark.write_text(wanted)
    return python


def versions(peer: str) -> str:
    """Return what is installed of the peer's own requirements."""
    return ", ".join(one for one in REQUIREMENTS[peer] if "==" in one)
