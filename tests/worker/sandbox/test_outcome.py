from typing import Any

import pytest

from worker.sandbox.outcome import Cause, Seen, Stop, conclude, judge
from worker.sandbox.output import Ending, Reply


def seen(ending: Ending | None = None, **facts: Any) -> Seen:
    reply = Reply("n", cap=10)
    reply.ending = ending
    return Seen(reply=reply, **facts)


def ended(code: int, oom_kills: int = 0, *, signalled: bool = False) -> Ending:
    return Ending(code, oom_kills, signalled)


def state(code: int, **more: Any) -> dict[str, Any]:
    return {"Running": False, "ExitCode": code, "OOMKilled": False, **more}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (seen(ended(0)), (Cause.EXITED, 0, None)),
        (seen(ended(7)), (Cause.EXITED, 7, None)),
        (seen(ended(137)), (Cause.EXITED, 137, None)),
        (seen(ended(137, signalled=True)), (Cause.EXITED, 137, "SIGKILL")),
        (seen(ended(141)), (Cause.EXITED, 141, "SIGPIPE")),
        (seen(ended(137, 1, signalled=True)), (Cause.OUT_OF_MEMORY, 137, "SIGKILL")),
        (seen(ended(0, 1)), (Cause.EXITED, 0, None)),
        (seen(ended(0), stop=Stop.DEADLINE), (Cause.TIMEOUT, 0, None)),
        (seen(stop=Stop.DEADLINE), (Cause.TIMEOUT, 137, "SIGKILL")),
        (seen(stop=Stop.DEADLINE, lost=True), (Cause.TIMEOUT, None, None)),
        (seen(stop=Stop.OUTPUT_LIMIT), (Cause.OUTPUT_LIMIT, 137, "SIGKILL")),
        (seen(stop=Stop.KILLED), (Cause.KILLED, 137, "SIGKILL")),
        (seen(state=state(137)), (Cause.KILLED, 137, "SIGKILL")),
        (seen(state=state(0)), (Cause.KILLED, 0, None)),
        (seen(state=None), (Cause.KILLED, 137, "SIGKILL")),
        (seen(state=state(137, OOMKilled=True)), (Cause.OUT_OF_MEMORY, 137, "SIGKILL")),
        (seen(state=state(0, Running=True)), (Cause.ENGINE_LOST, None, None)),
        (seen(lost=True), (Cause.ENGINE_LOST, None, None)),
        (seen(state=state(127)), (Cause.UNUSABLE_IMAGE, None, None)),
        (seen(Ending(code=None)), (Cause.UNUSABLE_IMAGE, None, None)),
    ],
)
def test_each_ending_has_its_own_cause(
    facts: Seen, expected: tuple[Cause, int | None, str | None]
) -> None:
    assert judge(facts) == expected


def test_the_flags_follow_from_what_was_seen() -> None:
    late = conclude(seen(stop=Stop.DEADLINE), duration_ms=5, network=False)
    assert (late.killed, late.timed_out, late.oom_killed) == (True, True, False)
    flooded = conclude(seen(stop=Stop.OUTPUT_LIMIT), duration_ms=5, network=False)
    assert (flooded.killed, flooded.timed_out) == (True, False)
    outside = conclude(seen(state=state(137)), duration_ms=5, network=False)
    assert (outside.killed, outside.timed_out, outside.oom_killed) == (False, False, False)
    child = conclude(seen(ended(0, 2)), duration_ms=5, network=True)
    assert (child.oom_killed, child.network_enabled, child.exit_code) == (True, True, 0)
