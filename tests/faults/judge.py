"""Whether anything was lost or done twice: the table, the moves and the effects, held together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from shared.states import TRANSITIONS, Status
from tests.faults.load import Ledger

MOVES = """
CREATE TABLE moves (id uuid, before text, after text, attempt integer);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moves VALUES (NEW.id, OLD.status, NEW.status, NEW.attempt);
    RETURN NULL;
END $$;
CREATE TRIGGER moves AFTER UPDATE ON skill_executions FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.ended IS NOT NULL)
    EXECUTE FUNCTION note_move();
"""
"""Every change of a status, and every change of a row that had ended, which there must not be."""

ROWS = "SELECT id, skill_name, status, error_code, attempt, attempts FROM skill_executions"
ENDS = """
SELECT id FROM moves WHERE after NOT IN ('pending', 'running') GROUP BY id HAVING count(*) <> 1
"""

ENDINGS: dict[str, set[tuple[str, str | None]]] = {
    "effect": {("success", None)},
    "later": {("success", None)},
    "effect-flaky": {("success", None)},
    "effect-once": {("success", None), ("error", "worker_lost")},
    "effect-fails": {("error", "handler_failed")},
    "effect-late": {("timeout", "timed_out")},
    "expiring": {("success", None), ("error", "expired")},
    "cancelled": {("success", None), ("error", "cancelled")},
}
"""How each kind may end; attempts are plenty, so none is spent."""


async def verdict(pool: "asyncpg.Pool[asyncpg.Record]", ledger: Ledger, log: Path) -> list[str]:
    """Return everything that is wrong, a sentence each; nothing when all is well."""
    rows = {row["id"]: row for row in await pool.fetch(ROWS)}
    lines = log.read_text().splitlines() if log.exists() else []
    effects = [(UUID(line.split()[0]), int(line.split()[1])) for line in lines]
    moves = [(Status(m["before"]), Status(m["after"])) for m in await pool.fetch(
        "SELECT DISTINCT before, after FROM moves")]  # fmt: skip
    twice = [row["id"] for row in await pool.fetch(ENDS)]
    return [
        *of_ledger(rows, ledger),
        *of_rows(rows, ledger.accepted, effects),
        *(f"moved from {b} to {a}, which there is no way for" for b, a in moves
          if a not in TRANSITIONS.get(b, ())),
        *(f"{execution_id} ended other than once" for execution_id in twice),
    ]  # fmt: skip


def of_ledger(rows: Mapping[UUID, Any], ledger: Ledger) -> list[str]:
    """Hold the rows against what was accepted."""
    lost = ledger.accepted.keys() - rows.keys()
    unknown = len(rows.keys() - ledger.accepted.keys())
    wrong = [f"{execution_id} was accepted and has no row" for execution_id in lost]
    if unknown > ledger.unsure:
        wrong.append(f"{unknown} rows nobody was told of, with {ledger.unsure} answers lost")
    wrong += [
        f"the key {key} has {len(ids)} executions: {sorted(map(str, ids))}"
        for key, ids in ledger.keys.items()
        if len(ids) > 1
    ]
    wrong += [f"{times} requests: {why}" for why, times in ledger.refused.items()
              if not why.startswith("expired")]  # fmt: skip
    return wrong


def of_rows(
    rows: Mapping[UUID, Any], accepted: Mapping[UUID, str], effects: Iterable[tuple[UUID, int]]
) -> list[str]:
    """Hold each row's ending and history against what its handler did."""
    wrong, done = [], Counter(effects)
    times: Counter[UUID] = Counter()
    for (execution_id, attempt), count in done.items():
        times[execution_id] += count
        if count > 1:
            wrong.append(f"{execution_id} did attempt {attempt} {count} times")
    for execution_id, row in rows.items():
        kind = accepted.get(execution_id, row["skill_name"])
        ending, said = (row["status"], row["error_code"]), f"{execution_id} ({kind})"
        allowed = ENDINGS[kind]
        if execution_id not in accepted:  # its twist is not known
            allowed = {end for name in ENDINGS for end in ENDINGS[name]}
        if ending not in allowed:
            wrong.append(f"{said} ended as {ending}: {row['attempts']}")
        if row["status"] == "success" and not times[execution_id]:
            wrong.append(f"{said} is a success without an effect")
        if row["skill_name"] == "effect-once" and times[execution_id] > 1:
            wrong.append(f"{said} may be done once and was {times[execution_id]} times")
        if times[execution_id] > row["attempt"]:
            wrong.append(f"{said} had {times[execution_id]} effects in {row['attempt']} attempts")
        if len(row["attempts"]) not in (row["attempt"] - 1, row["attempt"]):
            wrong.append(f"{said} tells of {len(row['attempts'])} of {row['attempt']} attempts")
    strangers = times.keys() - rows.keys()
    return wrong + [f"{execution_id} ran and has no row" for execution_id in strangers]
