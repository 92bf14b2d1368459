import pytest

from dispatcher.prefer import Preference, preference


@pytest.mark.parametrize(
    ("sent", "wait_s", "applied"),
    [
        ([], None, None),
        (["respond-async"], 0, "respond-async"),
        (["Respond-Async; x=1"], 0, "respond-async"),
        (["wait=10"], 10, "wait=10"),
        (['WAIT = "7"'], 7, "wait=7"),
        (["respond-async, wait=3"], 3, "wait=3"),
        (["respond-async", "wait=3"], 3, "wait=3"),
        (["wait=0"], 0, "wait=0"),
        (["wait=-1"], None, None),
        (["wait=soon"], None, None),
        (["wait=99999999999999999999"], None, None),
        (["return=minimal"], None, None),
        ([", ,;"], None, None),
    ],
)
def test_prefer_is_read_as_rfc_7240_has_it(
    sent: list[str], wait_s: float | None, applied: str | None
) -> None:
    assert preference(sent) == Preference(wait_s, applied)
