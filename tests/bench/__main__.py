"""``make bench``: other queues and ours, by turns, on the same servers, in one run.

Figures go to stdout, talk to stderr. ``--json`` prints everything; ``--again FILE --markdown``
makes the tables of docs/performance.md from such a file.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared import logging
from shared.settings import load
from tests.bench import environments, product, report
from tests.bench.measure import measured
from tests.bench.servers import Servers, machine, servers
from tests.bench.systems import SYSTEMS, System

QUICK = 0.05
"""How much of every case ``--quick`` runs."""

PARTS: Mapping[str, Callable[[Servers, float], dict[str, Any]]] = {
    "waiting": product.waiting,
    "fairness": product.fairness,
}
LIBRARIES = ("arq", "redis", "asyncpg", "uvloop", "fastapi", "uvicorn")


def main() -> None:
    """Measure, or read what was measured, and print it."""
    asked = arguments()
    if asked.again:
        found = json.loads(asked.again.read_text())
    else:
        logging.configure(load(log={"level": "warning"}), "bench")  # to stderr: stdout is figures
        scale = QUICK if asked.quick else 1.0
        found = run(asked.only, 1 if asked.quick else asked.rounds, asked.minutes, scale)
    if asked.markdown:
        print_markdown(found)
    elif asked.json:
        print(json.dumps(found, indent=1))
    else:
        print_tables(found)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", action="store_true", help="print the tables for docs")
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything, once")
    parser.add_argument("--rounds", type=int, default=2, help="rounds over all systems")
    parser.add_argument("--minutes", type=float, default=38, help="begin no round after so many")
    parser.add_argument("--only", action="append", default=[], metavar="WORD",
                        help="repeatable: systems and parts whose name holds the word")  # fmt: skip
    parser.add_argument("--again", type=Path, help="a file that --json printed: measure nothing")
    return parser.parse_args()


def run(only: list[str], rounds: int, minutes: float, scale: float) -> dict[str, Any]:
    """Measure everything asked for, by turns; what fails is named, and the rest goes on."""
    chosen = [system for system in SYSTEMS if wanted(system.name, only)]
    parts = {name: part for name, part in PARTS.items() if wanted(name, only)}
    failed: dict[str, str] = {}
    taken: dict[str, list[dict[str, Any]]] = {}
    began = time.monotonic()
    with servers() as found:
        for number in range(rounds):
            spent = (time.monotonic() - began) / 60
            if number and spent * (number + 1) / number > minutes:
                talk(f"{number} rounds took {spent:.0f} minutes: there is no time for another")
                break
            for system in chosen:
                if system.name not in failed:
                    note(system.name, taken, failed, lambda s=system: one(s, found, scale))  # type: ignore[misc]
            for name, part in parts.items():
                note(name, taken, failed, lambda p=part: p(found, scale))  # type: ignore[misc]
    middles = {name: report.middle(figures) for name, figures in taken.items()}
    return {
        "machine": machine(),
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "versions": {name: version(name) for name in LIBRARIES},
        "peers": {name: environments.versions(name) for name in environments.REQUIREMENTS},
        "rounds": max((len(figures) for figures in taken.values()), default=0),
        "scale": scale,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "systems": {name: figures for name, figures in middles.items() if name not in PARTS},
        **{name: figures for name, figures in middles.items() if name in PARTS},
        "failed": failed,
    }


def one(system: System, found: Servers, scale: float) -> dict[str, Any]:
    """Measure one system; raises when it lost or doubled a job."""
    figures = measured(system, found, scale)
    wrong = {n: v for n, v in figures.items() if n.startswith(("lost", "doubled")) and v}
    if wrong and system.peer is None:
        raise RuntimeError(f"{system.name}: {wrong}")
    return figures


def note(
    name: str,
    taken: dict[str, list[dict[str, Any]]],
    failed: dict[str, str],
    measure: Callable[[], dict[str, Any]],
) -> None:
    """Measure, say how it went, keep the figures."""
    began = time.monotonic()
    try:
        figures = measure()
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
        talk(f"{name}: failed. {error}")
        return
    taken.setdefault(name, []).append(figures)
    talk(f"{name}: {time.monotonic() - began:.0f} s {figures}")


def wanted(name: str, only: list[str]) -> bool:
    """Tell whether a name is among those asked for."""
    return not only or any(word.lower() in name.lower() for word in only)


def talk(text: str) -> None:
    """Say something beside the figures."""
    print(text, file=sys.stderr, flush=True)


def print_tables(found: Mapping[str, Any]) -> None:
    """Print the tables for people."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(f"{found['machine']}, Python {found['python']}, {found['rounds']} rounds")
    for rows in (report.table(found), report.ceiling(found), report.verdicts(found)):
        made = Table(box=None, pad_edge=False)
        for name in rows[0]:
            made.add_column(name)
        for row in rows[1:]:
            made.add_row(*row)
        console.print(made)
    for name, reason in found["failed"].items():
        console.print(f"{name} was not measured: {reason}", markup=False)


def print_markdown(found: Mapping[str, Any]) -> None:
    """Print the tables for docs/performance.md."""
    for rows in (report.verdicts(found), report.table(found), report.ceiling(found)):
        print(report.markdown(rows), end="\n\n")


if __name__ == "__main__":
    main()
