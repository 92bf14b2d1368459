"""Whether an attempt was the last one: from an outcome to what is written."""

import random
from typing import Any

from pydantic_core import to_json

from shared.errors import ErrorCode
from shared.executions import Claim, Ending
from shared.states import Status
from worker.outcome import Outcome

BACKOFF_CAP_S = 60.0
ELSEWHERE_S = 0.5
"""How long an execution that could not start here waits, so that another worker takes it."""

LONGEST_WAIT_S = 86_400.0
"""The longest wait that a handler may ask for with ``Retry(after_s=…)``."""

MAX_HAND_BACKS = 20
"""Times an execution may be handed on before it ends where it is."""

LOST = (
    "The worker stopped before the execution was done, and it may not run again by itself. "
    "Look at what it did, then submit it again"
)


def decide(claim: Claim, outcome: Outcome, duration_ms: int, *, elsewhere: bool = False) -> Ending:
    """Return the ending of this attempt.

    ``elsewhere`` says that another live worker could run what could not even start here.
    """
    failures = sum(entry.get("outcome") == "failed" for entry in claim.attempts)
    if outcome.status is Status.SUCCESS:
        return ending(claim, outcome, duration_ms)
    if outcome.stopped:
        return stopped(claim, duration_ms)
    if outcome.error_code is ErrorCode.CANCELLED:
        return ending(
            claim, outcome, duration_ms, history(claim, outcome, duration_ms, "cancelled")
        )
    if outcome.nothing_ran and elsewhere and len(claim.attempts) - failures < MAX_HAND_BACKS:
        return again(claim, outcome, duration_ms, "handed_back", ELSEWHERE_S)
    if may_repeat(claim, outcome) and failures < claim.max_retries:
        asked = outcome.retry_after_s
        wait = backoff(failures + 1) if asked is None else min(max(0.0, asked), LONGEST_WAIT_S)
        return again(claim, outcome, duration_ms, "failed", wait)
    return ending(claim, outcome, duration_ms, history(claim, outcome, duration_ms, "failed"))


def may_repeat(claim: Claim, outcome: Outcome) -> bool:
    """Tell whether this kind of failure may be tried again for this skill at all."""
    if outcome.status is Status.TIMEOUT:
        return claim.retry_on_timeout and claim.idempotent
    return outcome.retryable and (claim.idempotent or outcome.nothing_ran)


def backoff(failures: int) -> float:
    """Return the seconds before the next try: full jitter under 1, 2, 4, … up to 60.

    AWS Architecture Blog, "Exponential Backoff And Jitter": of the variants there, the one with the
    least work and completion time.
    """
    return random.uniform(0, min(BACKOFF_CAP_S, 2.0 ** (failures - 1)))  # noqa: S311  # no secret


def stopped(claim: Claim, duration_ms: int) -> Ending:
    """End an attempt that this worker's shutdown cut short."""
    if claim.idempotent:
        note = Outcome(
            status=Status.ERROR, error_message="Handed back: the worker is shutting down"
        )
        return again(claim, note, duration_ms, "handed_back", 0.0)
    lost = Outcome(status=Status.ERROR, error_code=ErrorCode.WORKER_LOST, error_message=LOST)
    return ending(claim, lost, duration_ms, history(claim, lost, duration_ms, "failed"))


def again(claim: Claim, outcome: Outcome, duration_ms: int, word: str, wait_s: float) -> Ending:
    """Give the row back as pending, this attempt kept in its history."""
    return Ending(
        id=claim.id,
        attempt=claim.attempt,
        worker_id=claim.worker_id,
        status=Status.PENDING,
        history=history(claim, outcome, duration_ms, word),
        retry_in_s=wait_s,
    )


def ending(claim: Claim, outcome: Outcome, duration_ms: int, entry: str | None = None) -> Ending:
    """Return the terminal write of an outcome."""
    return Ending(
        id=claim.id,
        attempt=claim.attempt,
        worker_id=claim.worker_id,
        status=outcome.status,
        output=outcome.output,
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        duration_ms=duration_ms,
        history=entry,
    )


def history(claim: Claim, outcome: Outcome, duration_ms: int, word: str) -> str:
    """Return this attempt's entry in ``attempts``; the write adds its times."""
    entry: dict[str, Any] = {
        "attempt": claim.attempt,
        "outcome": word,
        "errorCode": outcome.error_code,
        "errorMessage": outcome.error_message,
        "workerId": claim.worker_id,
        "durationMs": duration_ms,
    }
    return to_json(entry).decode()
