"""Programs under measurement: started, waited for, counted, ended."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
TICKS = os.sysconf("SC_CLK_TCK")
STOP_S = 20.0
PRODUCER_S = 300.0
"""The longest that one producer may take."""


def command(program: str, interpreter: Path | None) -> list[str]:
    """Return what runs a program: a peer's script, or a module of ours."""
    if interpreter is not None:
        return [str(interpreter), str(PEERS / program)]
    return [sys.executable, "-m", program]


def start(argv: list[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a program in a process group of its own; it logs into a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )


def run(argv: list[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Run a producer to its end; return what it printed last."""
    found: dict[str, Any] = json.loads(finished(argv, env).strip().splitlines()[-1])
    return found


def finished(argv: list[str], env: Mapping[str, str]) -> str:
    """Run a program to its end; return what it printed. Raises RuntimeError with its words."""
    done = subprocess.run(
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PRODUCER_S,
    )
    if done.returncode:
        raise RuntimeError(f"{argv[1:3]}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def ended(*processes: "subprocess.Popen[bytes]") -> None:
    """End programs and whatever they started: a stop signal, then a kill."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def family(name: str) -> frozenset[int]:
    """Return the processes of a name."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if (folder / "comm").read_text().strip() == name:
                    found.add(int(folder.name))
            except OSError:
                continue
    return frozenset(found)


def descendants(pids: Iterable[int]) -> set[int]:
    """Return processes with all their children."""
    found, left = set(), list(pids)
    while left:
        pid = left.pop()
        found.add(pid)
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        left += [int(child) for child in children if int(child) not in found]
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes have used, their ended children's included."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS
