from itertools import product

import pytest

from shared.states import TERMINAL, TRANSITIONS, Status, allows

ALLOWED = {
    ("pending", "running"),
    ("pending", "error"),
    ("running", "pending"),
    ("running", "success"),
    ("running", "error"),
    ("running", "timeout"),
}


@pytest.mark.parametrize(("before", "after"), list(product(Status, Status)))
def test_a_move_is_allowed_only_when_the_picture_shows_it(before: Status, after: Status) -> None:
    assert allows(before, after) == ((before.value, after.value) in ALLOWED)


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_terminal_states_are_those_without_a_way_on() -> None:
    assert {Status.SUCCESS, Status.ERROR, Status.TIMEOUT} == TERMINAL
