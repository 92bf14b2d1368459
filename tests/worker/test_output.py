import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.output import PREVIEW_CHARS, failure_message, to_text, too_large

REPLACED = "\N{REPLACEMENT CHARACTER}"


@dataclass
class Held:
    text: str


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a": "x\0y"}, {"a": f"x{REPLACED}y"}),
        ({"a\0": 1}, {f"a{REPLACED}": 1}),
        ({"a": ["\ud800", {"b": "\udfff"}]}, {"a": [REPLACED, {"b": REPLACED}]}),
        ({"\ud800": "\0"}, {REPLACED: REPLACED}),
        ({"a": "\\u0000"}, {"a": "\\u0000"}),
        ({"a": Held("\0")}, {"a": {"text": REPLACED}}),
        ({"a": float("nan"), "b": float("-inf")}, {"a": None, "b": None}),
        ({"a": (1, 2), "b": {3}}, {"a": [1, 2], "b": [3]}),
        ({"a": datetime(2026, 1, 2, tzinfo=UTC)}, {"a": "2026-01-02T00:00:00Z"}),
        ({"emoji": "\N{GRINNING FACE}"}, {"emoji": "\N{GRINNING FACE}"}),
    ],
)
def test_a_value_becomes_what_postgres_can_hold(
    value: dict[str, Any], stored: dict[str, Any]
) -> None:
    text = to_text(value)
    assert text is not None
    assert json.loads(text) == stored


def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(2000):
        value = {"a": value}
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    "value",
    [{"a": object()}, {"a": b"\xff"}, deep(), circular(), {"a": lambda: 1}],
    ids=["object", "bytes", "deep", "circular", "function"],
)
def test_what_is_not_json_has_no_text(value: dict[str, Any]) -> None:
    assert to_text(value) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats()
    | st.text(alphabet=st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet=st.characters()), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(alphabet=st.characters()), JSON))
def test_any_json_like_value_gets_a_text_without_nul_and_surrogates(value: dict[str, Any]) -> None:
    text = to_text(value)
    assert text is not None
    read = json.dumps(json.loads(text), ensure_ascii=False)
    read.encode()
    assert "\\u0000" not in read.replace("\\\\", "")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"success": False}, "Skill execution failed"),
        ({"success": False, "error": "why"}, "why"),
        ({"success": False, "message": " ", "reason": "because"}, "because"),
        ({"status": 404, "statusText": "Not Found"}, "Not Found"),
        ({"status": 400.0}, "Skill execution failed"),
        ({"status": "FAILED"}, "Skill execution failed"),
        ({"type": " error ", "message": "m"}, "m"),
        ({"type": "failure"}, "Skill execution failed"),
        ({"success": True}, None),
        ({"success": 0}, None),
        ({"status": 399}, None),
        ({"status": True}, None),
        ({"status": "ok", "error": "only a field"}, None),
        ({"type": ["error"]}, None),
        ({}, None),
    ],
)
def test_a_failure_is_told_by_its_shape(value: dict[str, Any], message: str | None) -> None:
    assert failure_message(value) == message


def test_a_preview_is_a_head_of_whole_characters() -> None:
    text = json.dumps({"a": "ä" * 10_000}, ensure_ascii=False).encode()
    kept = json.loads(too_large(text))
    assert kept == {"truncated": True, "preview": text.decode()[:PREVIEW_CHARS]}
