import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ErrorCode
from worker.outcome import MESSAGE_LENGTH, failed, public


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("first line\nsecond line", "first line"),
        ("\n  padded  \nmore", "padded"),
        ("", "Skill execution failed"),
        ("can't open '/etc/app/key.pem': denied", "can't open '<path>': denied"),
        ("at /home/me/x.py:12, in f", "at <path>:12, in f"),
        ("GET https://example.org/a/b failed", "GET https://example.org/a/b failed"),
        ("type application/json is no good", "type application/json is no good"),
        ("relative a/b/c stays", "relative a/b/c stays"),
        ("Bearer abc.def refused", "Bearer ******** refused"),
        ("redis://u:pw@host is away", "redis://********@host is away"),
        ("key sfk_0123456789abcdef", "key ********"),
        ("nul \0 and \ud800", "nul \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_message_of_others_loses_what_callers_must_not_see(message: str, shown: str) -> None:
    assert public(message) == shown


@given(st.text(alphabet=st.characters(), max_size=2 * MESSAGE_LENGTH))
def test_any_message_can_be_stored_and_is_short(message: str) -> None:
    shown = public(message)
    assert 0 < len(shown) <= MESSAGE_LENGTH
    assert "\0" not in shown
    shown.encode()


def test_a_long_line_of_slashes_takes_no_time() -> None:
    assert len(public("/a" * 1_000_000)) <= MESSAGE_LENGTH
    assert len(public("/" * 1_000_000)) <= MESSAGE_LENGTH


def test_our_own_message_keeps_its_json_pointer() -> None:
    outcome = failed(ErrorCode.INVALID_OUTPUT, "/items/0: is not a number")
    assert outcome.error_message == "/items/0: is not a number"
