from typing import Any

import pytest

from worker.sandbox.sweep import doomed

NOW = 1_000_000.0


def box(*, worker: str, name: str = "x", left_s: float = 30, fleet: str = "mine") -> dict[str, Any]:
    return {
        "Names": [f"/{name}"],
        "Labels": {
            "skillfleet.fleet": fleet,
            "skillfleet.worker": worker,
            "skillfleet.deadline": str(int((NOW + left_s) * 1000)),
        },
    }


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (box(worker="dead"), True),
        (box(worker="alive"), False),
        (box(worker="alive", left_s=-9999), False),
        (box(worker="me", name="held"), False),
        (box(worker="me", name="held", left_s=-9), False),
        (box(worker="me", name="held", left_s=-11), True),
        (box(worker="me", name="held-fence"), False),
        (box(worker="me", name="unknown"), True),
        (box(worker="dead", fleet="other"), False),
        (box(worker="dead", fleet="other", left_s=-601), True),
    ],
)
def test_only_what_nobody_waits_for_goes(container: dict[str, Any], *, expected: bool) -> None:
    found = doomed(
        container, fleet="mine", worker="me", live={"me", "alive"}, held={"held"}, now=NOW
    )
    assert found is expected


def test_a_container_whose_labels_are_unreadable_counts_as_abandoned() -> None:
    container = {"Names": ["/x"], "Labels": {"skillfleet.deadline": "soon"}}
    assert doomed(container, fleet="mine", worker="me", live=(), held=(), now=NOW)
