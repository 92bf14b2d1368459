import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.digest import digest
from shared.errors import InvalidInput

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def test_the_digest_is_the_hash_of_the_canonical_text() -> None:
    text = '{"input":{"a":1,"b":[true,null,"é"]},"skillName":"echo","version":"^1.0.0"}'
    assert (
        digest("echo", "^1.0.0", {"b": [True, None, "é"], "a": 1.0})
        == hashlib.sha256(text.encode()).hexdigest()
    )


@given(st.dictionaries(st.text(max_size=3), values))
def test_the_order_of_keys_does_not_matter(input: dict[str, Any]) -> None:
    turned = dict(reversed(list(input.items())))
    assert digest("echo", None, input) == digest("echo", None, turned)


def test_name_version_and_input_all_count() -> None:
    digests = {
        digest("echo", None, {}),
        digest("echo", "1.0.0", {}),
        digest("echo", "^1.0.0", {}),
        digest("other", None, {}),
        digest("echo", None, {"a": 1}),
        digest("echo", None, {"a": "1"}),
        digest("echo", None, {"a": True}),
    }
    assert len(digests) == 7


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("input", "pointer", "message"),
    [
        ({"a": {"b/c": [0, 2**53]}}, "/a/b~1c/1", "beyond 2^53"),
        ({"a": -(2**53)}, "/a", "beyond 2^53"),
        ({"a": 10**5000}, "/a", "beyond 2^53"),
        ({"a": "x\ud800"}, "/a", "lone surrogate"),
        ({"\udfff": 1}, "", "key"),
        ({"a": float("nan")}, "/a", "finite"),
        ({"a": float("inf")}, "/a", "finite"),
        ({1: 2}, "", "key"),
        ({"a": b"x"}, "/a", "not a JSON value"),
        ({"a": nested(20_000)}, "", "nested too deeply"),
    ],
)
def test_what_canonical_json_cannot_carry_is_named(input: Any, pointer: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=r"idempotency key") as caught:
        digest("echo", None, input)
    assert caught.value.status == 422
    (violation,) = caught.value.violations
    assert violation["pointer"] == pointer
    assert message in violation["message"]


def test_the_largest_safe_integers_are_carried() -> None:
    assert digest("echo", None, 2**53 - 1) != digest("echo", None, -(2**53) + 1)
