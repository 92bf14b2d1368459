"""What the figures come to: ratios beside their goals, and tables for people and for docs."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.bench.systems import BARE, BATCHES, LIBRARY, OURS, PEERS, REST, SYSTEMS

Figures = Mapping[str, Any]
DURABLE_ARQ = "arq poll 10 ms, 3 commits"
COLUMNS = {
    "put one by one": "put_one",
    "put, 64 at once": "put_many",
    "put in batches": "put_batch",
    "end to end, 1 worker": "through_1",
    "end to end, 2 workers": "through_2",
    "idle p50 ms": "idle_ms.p50",
    "p95": "idle_ms.p95",
    "p99": "idle_ms.p99",
    "Redis commands": "redis_commands",
    "Postgres statements": "statements",
}
GROUPS = ("producer", "dispatcher", "worker", "redis", "postgres")


class Goal(NamedTuple):
    """A ratio or a time beside what it should be; ``found`` None was not measured."""

    text: str
    found: float | None
    bound: float
    at_most: bool = False

    @property
    def reached(self) -> bool | None:
        if self.found is None:
            return None
        return self.found <= self.bound if self.at_most else self.found >= self.bound


def middle(rounds: Sequence[Figures]) -> dict[str, Any]:
    """Return the median of every figure over the rounds."""
    found: dict[str, Any] = {}
    for name in {name: None for one in rounds for name in one}:
        values = [one[name] for one in rounds if name in one]
        if isinstance(values[0], Mapping):
            found[name] = middle(values)
        elif name.startswith(("lost", "doubled")):
            found[name] = sum(values)
        else:
            found[name] = round(statistics.median(values), 2)
    return found


def figure(figures: Figures, path: str) -> Any:
    """Return a figure by its dotted name; None where it was not measured."""
    value: Any = figures
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def best(systems: Figures, names: Sequence[str], path: str) -> tuple[str, float] | None:
    """Return who of these has the highest figure."""
    found = [(name, float(figure(systems[name], path) or 0)) for name in names if name in systems]
    return max(found, key=lambda one: one[1], default=None)


def goals(report: Figures) -> list[Goal]:
    """Return what was set out to be reached."""
    systems, waits, fair = report["systems"], report.get("waiting", {}), report.get("fairness", {})
    best_2 = best(systems, PEERS, "through_2")
    best_any = max(
        (one for path in ("through_1", "through_2") if (one := best(systems, PEERS, path))),
        key=lambda one: one[1],
        default=None,
    )

    def over(ours: str, path: str, of: float | None) -> float | None:
        mine = figure(systems.get(ours, {}), path)
        return round(mine / of, 2) if mine and of else None

    saq = figure(systems.get("saq", {}), "through_1")
    arq = figure(systems.get(DURABLE_ARQ, {}), "through_1")
    named = f" ({best_2[0]})" if best_2 else ""
    return [
        Goal(f"library, durable, 2 workers, over the best peer{named}",
             over(LIBRARY, "through_2", best_2[1] if best_2 else None), 1.5),
        Goal("REST, 64 connections, over saq's one worker", over(REST, "through_1", saq), 1.0),
        Goal("REST, 64 connections, over arq with 3 commits", over(REST, "through_1", arq), 3.0),
        Goal("REST batches over the best peer",
             over(BATCHES, "through_2", best_any[1] if best_any else None), 1.0),
        Goal("queue alone, idle, put to start, p50 ms",
             figure(systems.get(BARE, {}), "idle_ms.p50"), 1.5, at_most=True),
        Goal("queue alone, idle, put to start, p99 ms",
             figure(systems.get(BARE, {}), "idle_ms.p99"), 4.0, at_most=True),
        Goal("REST submit and wait, one client, p50 ms", figure(waits, "rest.p50"), 8.0,
             at_most=True),
        Goal("REST submit and wait, one client, p99 ms", figure(waits, "rest.p99"), 20.0,
             at_most=True),
        *(Goal(f"p95 beside a flood of {name} calls, over alone", figure(found, "ratio"), 3.0,
               at_most=True) for name, found in fair.items()),
    ]  # fmt: skip


def table(report: Figures) -> list[list[str]]:
    """Return the systems' figures, a row each, the names of the columns first."""
    rows = [["system", *COLUMNS]]
    for name in (system.name for system in SYSTEMS):
        if name in report["systems"]:
            found = report["systems"][name]
            rows.append([name, *(shown(figure(found, path)) for path in COLUMNS.values())])
    return rows


def ceiling(report: Figures) -> list[list[str]]:
    """Return the CPU time of an execution by process, in µs, with one worker."""
    rows = [["system", *GROUPS, "sum"]]
    for name in (*PEERS, *OURS):
        if (used := figure(report["systems"].get(name, {}), "cpu_us")) is not None:
            each = [used.get(group, 0) for group in GROUPS]
            rows.append([name, *map(shown, each), shown(sum(each))])
    return rows


def verdicts(report: Figures) -> list[list[str]]:
    """Return the goals and whether they were reached."""
    words = {True: "yes", False: "no", None: "not measured"}
    rows = [["goal", "found", "bound", "reached"]]
    for goal in goals(report):
        bound = f"{'≤' if goal.at_most else '≥'} {goal.bound:g}"
        rows.append([goal.text, shown(goal.found), bound, words[goal.reached]])
    return rows


def shown(value: Any) -> str:
    """Return a figure as a table has it."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:g}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
