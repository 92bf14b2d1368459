import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from shared.errors import ErrorCode
from shared.executions import Claim
from shared.states import Status
from worker.outcome import Outcome
from worker.retry import BACKOFF_CAP_S, LONGEST_WAIT_S, MAX_HAND_BACKS, backoff, decide

SUCCESS = Outcome(status=Status.SUCCESS, output="{}")
FAILED = Outcome(
    status=Status.ERROR, error_code=ErrorCode.HANDLER_FAILED, error_message="no", output="{}"
)
TRANSIENT = Outcome(
    status=Status.ERROR,
    error_code=ErrorCode.HANDLER_FAILED,
    error_message="later",
    retryable=True,
)
TIMEOUT = Outcome(status=Status.TIMEOUT, error_code=ErrorCode.TIMED_OUT, error_message="late")
NOTHING_RAN = Outcome(
    status=Status.ERROR,
    error_code=ErrorCode.SANDBOX_UNAVAILABLE,
    error_message="no engine",
    nothing_ran=True,
)
STOPPED = Outcome(status=Status.ERROR, stopped=True)


def claim(failed: int = 0, handed_back: int = 0, **changes: Any) -> Claim:
    past = [{"outcome": "failed"}] * failed + [{"outcome": "handed_back"}] * handed_back
    fields: dict[str, Any] = {
        "id": uuid7(),
        "worker_id": "w",
        "attempt": len(past) + 1,
        "attempts": past,
        "skill_id": uuid7(),
        "skill_name": "s",
        "skill_version": "1.0.0",
        "handler": "h",
        "api_key_id": "k",
        "caller": "rest",
        "session_id": None,
        "provider": None,
        "model": None,
        "input": {},
        "max_retries": 3,
        "timeout_ms": None,
        "idempotent": True,
        "retry_on_timeout": False,
        "queue": "direct",
        "priority": "normal",
    }
    return Claim(**{**fields, **changes})


def again(claim: Claim, outcome: Outcome, **more: bool) -> bool:
    ending = decide(claim, outcome, 5, **more)
    assert (ending.id, ending.attempt, ending.worker_id) == (claim.id, claim.attempt, "w")
    return ending.status is Status.PENDING


def test_a_success_ends_with_its_output_and_no_entry() -> None:
    ending = decide(claim(), SUCCESS, 5)
    assert (ending.status, ending.output, ending.history) == (Status.SUCCESS, "{}", None)
    assert ending.duration_ms == 5


@pytest.mark.parametrize(
    ("outcome", "changes", "expected"),
    [
        (TRANSIENT, {}, True),
        (TRANSIENT, {"idempotent": False}, False),
        (TRANSIENT, {"max_retries": 0}, False),
        (TRANSIENT, {"failed": 2}, True),
        (TRANSIENT, {"failed": 3}, False),
        (TRANSIENT, {"failed": 2, "handed_back": 9}, True),
        (FAILED, {}, False),
        (TIMEOUT, {}, False),
        (TIMEOUT, {"retry_on_timeout": True}, True),
        (TIMEOUT, {"retry_on_timeout": True, "idempotent": False}, False),
        (TIMEOUT, {"retry_on_timeout": True, "failed": 3}, False),
        (NOTHING_RAN, {}, False),
        (STOPPED, {}, True),
        (STOPPED, {"max_retries": 0}, True),
        (STOPPED, {"idempotent": False}, False),
    ],
)
def test_who_is_tried_again(outcome: Outcome, changes: dict[str, Any], expected: bool) -> None:
    assert again(claim(**changes), outcome) == expected


def test_what_could_not_start_here_is_handed_on_also_when_it_is_not_idempotent() -> None:
    assert again(claim(idempotent=False, max_retries=0), NOTHING_RAN, elsewhere=True)
    tired = claim(handed_back=MAX_HAND_BACKS)
    assert not again(tired, NOTHING_RAN, elsewhere=True)


def test_a_failed_attempt_is_kept_whole() -> None:
    for outcome in (TRANSIENT, FAILED, TIMEOUT):
        ending = decide(claim(failed=1), outcome, 5)
        assert ending.history is not None
        assert json.loads(ending.history) == {
            "attempt": 2,
            "outcome": "failed",
            "errorCode": outcome.error_code,
            "errorMessage": outcome.error_message,
            "workerId": "w",
            "durationMs": 5,
        }


def test_a_row_given_back_shows_no_error_and_no_output() -> None:
    ending = decide(claim(), TRANSIENT, 5)
    assert (ending.output, ending.error_code, ending.error_message) == (None, None, None)


def test_a_stop_hands_back_at_once_or_ends_as_lost() -> None:
    back = decide(claim(), STOPPED, 5)
    assert back.retry_in_s == 0.0
    assert json.loads(back.history or "")["outcome"] == "handed_back"
    over = decide(claim(idempotent=False), STOPPED, 5)
    assert (over.status, over.error_code) == (Status.ERROR, ErrorCode.WORKER_LOST)
    assert over.error_message


@pytest.mark.parametrize(
    ("asked", "given"),
    [(2.5, 2.5), (0.0, 0.0), (-3.0, 0.0), (math.inf, LONGEST_WAIT_S), (math.nan, 0.0)],
)
def test_the_handler_s_own_wait_goes_before_the_backoff(asked: float, given: float) -> None:
    outcome = Outcome(status=Status.ERROR, retryable=True, retry_after_s=asked)
    assert decide(claim(), outcome, 5).retry_in_s == given


@given(st.integers(1, 200))
def test_the_backoff_grows_by_two_up_to_its_cap(failures: int) -> None:
    assert 0.0 <= backoff(failures) <= min(BACKOFF_CAP_S, 2.0 ** (failures - 1))


def test_the_backoff_is_jittered() -> None:
    assert len({backoff(7) for _ in range(20)}) > 1


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 5))
def test_an_execution_runs_at_most_one_and_its_retries_and_its_hand_backs(
    stops: list[bool], retries: int
) -> None:
    failed = handed_back = 0
    for stop in [*stops, *[False] * (retries + 1)]:
        current = claim(failed, handed_back, max_retries=retries)
        if not again(current, STOPPED if stop else TRANSIENT):
            break
        handed_back, failed = handed_back + stop, failed + (not stop)
    assert failed <= retries
    assert current.attempt <= 1 + retries + handed_back
