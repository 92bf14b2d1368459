import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import BadRequest, InvalidInput, SkillfleetError
from shared.strictjson import loads

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(json_values)
def test_what_json_writes_is_read_back(value: Any) -> None:
    assert loads(json.dumps(value, ensure_ascii=False).encode()) == value
    assert loads(json.dumps(value).encode()) == value


@given(
    st.binary(max_size=40)
    | st.text(alphabet='{}[]",:0123eE.+-\\u d8a', max_size=40).map(str.encode)
)
def test_any_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    refusal = None
    try:
        assert loads(data) == json.loads(data)
    except SkillfleetError as error:
        refusal = error
    assert refusal is None or refusal.status in {400, 422}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"  \n", b"{", b"{} {}", b"NaN", b'{"a": Infinity}', b"-Infinity", b"1e999", b"01",
        b"'a'", b"[1,]", b'"\x01"', b'"\xff"', b'"\xed\xa0\x80"', rb'"\ud800"', rb'{"\udc00": 1}',
        b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"[" * 100_000, b"1" * 5000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_json_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(BadRequest):
        loads(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "b": {"k": 1, "k": 2}}', "'k' comes twice"),
        (rb'{"a": 1, "\u0061": 2}', "'a' comes twice"),
        (b"[18446744073709551616]", "64 bits"),
        (b"-9223372036854775809", "64 bits"),
        (b"1" + b"0" * 200, "64 bits"),
        (b"[" * 65 + b"]" * 65, "nested too deeply"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested too deeply"),
        (b"[" * 1000 + b"]" * 1000, "nested too deeply"),
    ],
)
def test_json_that_parsers_read_differently_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 64 + b"]" * 64, b"18446744073709551615", b"-9223372036854775808", b"1e300",
        b'[[], [], "[[[[[[[[{{{{"]' , b"[" + b"[]," * 500 + b"[]]", rb'"\ud83d\ude00 \u0000"',
    ],
)  # fmt: skip
def test_what_is_at_a_limit_is_read(data: bytes) -> None:
    assert loads(data) == orjson.loads(data)
