import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import ErrorCode, ExecutionFailed
from worker.paths import ABSOLUTE, ESCAPES, RESTRICTED_SEGMENT, SCRATCH, segments


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", ABSOLUTE),
        ("\\\\host\\share", ABSOLUTE),
        ("C:\\Windows", ABSOLUTE),
        ("/a/.git/config", ABSOLUTE),
        (".env", RESTRICTED_SEGMENT),
        ("a\\.git\\config", RESTRICTED_SEGMENT),
        ("a/../secrets", RESTRICTED_SEGMENT),
        (".\u200bGIT .", RESTRICTED_SEGMENT),
        (SCRATCH, RESTRICTED_SEGMENT),
        ("../x", ESCAPES),
        ("a/..", ESCAPES),
        ("\u2025/x", ESCAPES),
        ("a\u2100b", ESCAPES),
    ],
)
def test_a_refused_path_says_which_rule_it_breaks(path: str, message: str) -> None:
    with pytest.raises(ExecutionFailed) as caught:
        segments(path)
    assert (str(caught.value), caught.value.code) == (message, ErrorCode.PATH_REJECTED)


odd = st.text(
    alphabet=st.sampled_from([*"./\\ ~%$:aA", "\u200b", "\uff0e", "\uff0f", "é", "\0", "\ud800"]),
    max_size=12,
)


@given(odd | st.text() | st.lists(odd, max_size=4).map("/".join))
@example("a/./b")
@example("x" * 5000)
def test_what_the_text_rules_let_through_names_something_below_the_workspace(path: str) -> None:
    refusal: ErrorCode | None = None
    try:
        found = segments(path)
    except ExecutionFailed as error:
        refusal = error.code
    else:
        joined = "/".join(found)
        assert Path(os.path.normpath("/ws/" + joined)) == Path("/ws", *found)
        assert Path("/ws", *found).parts[:2] == ("/", "ws")
        assert all(name not in {"", ".", ".."} and "/" not in name for name in found)
        assert segments(joined) == found
        assert "\0" not in joined
    assert refusal in {None, ErrorCode.PATH_REJECTED}


@given(
    st.sampled_from([".env", ".git", ".ssh", ".omniroute", ".codex", "secrets"]),
    st.lists(st.sampled_from(["\u200b", "\u00ad", "\u2060"]), max_size=2),
    st.text(alphabet=". \u00a0\u3000", max_size=3),
    st.booleans(),
    st.integers(0, 8),
)
def test_no_spelling_of_a_restricted_name_gets_through(
    name: str, hidden: list[str], tail: str, upper: bool, place: int
) -> None:
    spelled = name[:place] + "".join(hidden) + name[place:]
    spelled = (spelled.upper() if upper else spelled) + tail
    with pytest.raises(ExecutionFailed):
        segments(f"a/{spelled}/b")
