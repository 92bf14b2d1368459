"""The benchmark's own sums, and that it still runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import report
from tests.bench.measure import percentiles
from tests.bench.peers import slots
from tests.bench.peers.slots import Slots
from tests.bench.systems import BARE, BATCHES, LIBRARY, OURS, PEERS, REST

REPORT: dict[str, Any] = {
    "systems": {
        "saq": {"through_1": 2000, "through_2": 3000},
        "streaq": {"through_1": 3500, "through_2": 2500},
        report.DURABLE_ARQ: {"through_1": 1000, "through_2": 900},
        LIBRARY: {"through_2": 6000, "cpu_us": {"producer": 40, "worker": 50.5}},
        REST: {"through_1": 2900},
        BATCHES: {"through_2": 7000},
        BARE: {"idle_ms": {"p50": 1.2, "p99": 4.5}},
    },
    "waiting": {"rest": {"p50": 5.0, "p99": 21.0}},
    "fairness": {"no-op": {"ratio": 2.5}},
}


def test_every_goal_is_a_ratio_of_what_was_measured() -> None:
    found = [(goal.found, goal.bound, goal.reached) for goal in report.goals(REPORT)]
    assert found == [
        (2.0, 1.5, True),
        (1.45, 1.0, True),
        (2.9, 3.0, False),
        (2.0, 1.0, True),
        (1.2, 1.5, True),
        (4.5, 4.0, False),
        (5.0, 8.0, True),
        (21.0, 20.0, False),
        (2.5, 3.0, True),
    ]
    assert report.goals(REPORT)[0].text.endswith("(saq)")


def test_what_was_not_measured_is_said_to_be_so() -> None:
    empty: dict[str, Any] = {"systems": {}}
    assert {goal.reached for goal in report.goals(empty)} == {None}
    assert report.verdicts(empty)[1][-1] == "not measured"


def test_the_median_of_rounds_is_told_and_every_lost_job_counts() -> None:
    rounds: list[dict[str, Any]] = [
        {"a": 1, "lost_1": 1, "b": {"p50": 3.0}},
        {"a": 9, "lost_1": 2, "b": {"p50": 5.0}},
        {"a": 2, "lost_1": 0},
    ]
    assert report.middle(rounds) == {"a": 2, "lost_1": 3, "b": {"p50": 4.0}}


def test_tables_have_a_column_for_each_figure() -> None:
    for rows in (report.table(REPORT), report.ceiling(REPORT), report.verdicts(REPORT)):
        assert len({len(row) for row in rows}) == 1
        assert report.markdown(rows).count("\n") == len(rows)
    assert report.ceiling(REPORT)[1] == [LIBRARY, "40", "0", "50.5", "0", "0", "90.5"]
    assert percentiles([float(n) for n in range(1, 101)]) == {
        "p50": 50.5,
        "p95": 95.95,
        "p99": 99.99,
    }


def test_slots_tell_who_ran_and_how_often(tmp_path: Path) -> None:
    slots.make(tmp_path / "slots", 3)
    first, second = Slots(tmp_path / "slots"), Slots(tmp_path / "slots")
    for number in (0, 2, 2):
        first.stamp(number)
    assert [runs for _, runs in second.starts(3)] == [1, 0, 2]
    assert second.done(3) == 2
    assert second.starts(3)[2][0] >= second.starts(3)[0][0] > 0
    first.close()
    second.close()


def test_every_peer_and_every_way_of_ours_is_named_once() -> None:
    assert len({*PEERS, *OURS}) == len(PEERS) + len(OURS) == 14


@pytest.mark.parametrize("system", ["queue alone", "library"])
def test_it_runs(system: str) -> None:
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", "--only", system]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == {}
    (figures,) = found["systems"].values()
    assert figures["lost_1"] == figures["doubled_2"] == 0
    assert figures["through_2"] > 0
