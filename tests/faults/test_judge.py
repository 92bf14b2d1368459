"""The judge finds what it is there for: each kind of harm, planted."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.faults.judge import of_ledger, of_rows
from tests.faults.load import Ledger


def row(name: str = "effect", **changes: Any) -> dict[str, Any]:
    fields = {"skill_name": name, "status": "success", "error_code": None, "attempt": 1}
    return {**fields, "attempts": [], **changes}


def judged(
    found: dict[str, Any], *, kind: str = "effect", effects: tuple[int, ...] = (1,)
) -> list[str]:
    """Judge one row; ``effects`` are the attempts that its handler wrote down."""
    execution_id = uuid4()
    done = [(execution_id, attempt) for attempt in effects]
    return of_rows({execution_id: found}, {execution_id: kind}, done)


def test_a_clean_table_is_clean() -> None:
    assert judged(row()) == []
    retried = row(attempt=2, attempts=[{"attempt": 1}])
    assert judged(retried, kind="effect-flaky", effects=(1, 2)) == []
    lost = row("effect-once", status="error", error_code="worker_lost")
    assert judged(lost, kind="effect-once") == []
    assert judged(lost, kind="effect-once", effects=()) == []
    assert judged(row(status="timeout", error_code="timed_out"), kind="effect-late") == []


@pytest.mark.parametrize(
    ("found", "kind", "effects", "said"),
    [
        (row(), "effect", (), "success without an effect"),
        (row(), "effect", (1, 1), "did attempt 1 2 times"),
        (row("effect-once", attempt=2, attempts=[{}]), "effect-once", (1, 2), "may be done once"),
        (row(status="error", error_code="worker_lost"), "effect", (1,), "ended as"),
        (row(status="error", error_code="internal"), "effect-once", (1,), "ended as"),
        (row(status="pending"), "effect", (), "ended as"),
        (row(status="running"), "later", (1,), "ended as"),
        (row(attempt=3), "effect", (1,), "tells of 0 of 3 attempts"),
        (row(), "effect", (1, 2), "2 effects in 1 attempts"),
        (row(), "effect-late", (1,), "ended as"),
    ],
)
def test_a_row_that_is_wrong_is_found(
    found: dict[str, Any], kind: str, effects: tuple[int, ...], said: str
) -> None:
    assert said in "\n".join(judged(found, kind=kind, effects=effects))


def test_what_ran_without_a_row_is_found() -> None:
    assert "has no row" in of_rows({}, {}, [(UUID(int=1), 1)])[0]


def test_a_ledger_that_does_not_agree_is_found() -> None:
    there, other, gone = uuid4(), uuid4(), uuid4()
    ledger = Ledger(accepted={there: "effect", gone: "effect"})
    assert any("was accepted and has no row" in one for one in of_ledger({there: row()}, ledger))
    ledger = Ledger(accepted={there: "effect"})
    rows = {there: row(), other: row()}
    assert any("nobody was told of" in one for one in of_ledger(rows, ledger))
    ledger.unsure = 1
    assert of_ledger(rows, ledger) == []
    ledger.keys["k"] = {there, other}
    assert any("has 2 executions" in one for one in of_ledger(rows, ledger))
    refused = Ledger()
    refused.refused["effect: 418"] = 3
    assert of_ledger({}, refused) == ["3 requests: effect: 418"]
