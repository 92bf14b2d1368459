import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ErrorCode, InvalidInput
from shared.schemas import MAX_VIOLATIONS, check_schema, compiled

words = st.sampled_from(
    ["string", "integer", "text", "type", "properties", "required", "items", "a", "$ref", "#"]
)
schemas = st.recursive(
    words | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


def nested(levels: int, value: Any = None) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def refused(schema: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check_schema(schema)
    assert caught.value.code == ErrorCode.INVALID_SCHEMA
    assert caught.value.violations
    return caught.value


def violations(schema: Any, value: Any) -> set[tuple[str, str]]:
    with pytest.raises(InvalidInput) as caught:
        compiled(schema).check(value)
    assert caught.value.code == ErrorCode.INVALID_INPUT
    return {(found["pointer"], found["message"]) for found in caught.value.violations}


# --- check_schema


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "text"}, "/type"),
        ({"properties": {"a/b": 3}}, "/properties/a~1b"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "minLength": -1}, "/minLength"),
        ({"$schema": "https://example.com/own"}, "/$schema"),
        ({"$schema": 3}, "/$schema"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1/x"}}}, "/properties/a/$ref"),
        ({"$ref": "other.json#/a"}, "/$ref"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"$dynamicRef": "http://127.0.0.1/x"}, "/$dynamicRef"),
        ({"items": {"$recursiveRef": "x"}}, "/items/$recursiveRef"),
        ({"$defs": {"a": {"$id": "https://example.com/a"}}}, "/$defs/a/$id"),
        ({"items": {"pattern": "^(?=a)b$"}}, "/items/pattern"),
        ({"pattern": r"(a)\1"}, "/pattern"),
        ({"pattern": "("}, "/pattern"),
        ({"pattern": "((a{1000}){1000}){1000}"}, "/pattern"),
        ({"patternProperties": {"(?!a)": {}}}, "/patternProperties/(?!a)"),
        ({"$ref": "#/$defs/none"}, ""),
        ({"const": "\ud800"}, ""),
        ({"maximum": 10**400}, ""),
        ({"maximum": 10**5000}, ""),
        ({"minimum": float("nan")}, "/minimum"),
        ({"description": "x" * 70_000}, ""),
        ({"properties": {f"p{i}": {} for i in range(2000)}}, ""),
        ({"properties": {f"p{i}": {"pattern": "a"} for i in range(65)}}, ""),
        ({1: {}}, ""),
        ([], ""),
        (True, ""),
        (None, ""),
    ],
)
def test_a_schema_that_is_wrong_or_harmful_is_refused_at_its_place(
    schema: Any, pointer: str
) -> None:
    assert refused(schema).violations[0]["pointer"] == pointer


def test_every_violation_of_a_schema_is_listed() -> None:
    error = refused({"type": "text", "properties": {"a": 3, "b": {"minLength": -1}}})
    assert {found["pointer"] for found in error.violations} == {
        "/type",
        "/properties/a",
        "/properties/b/minLength",
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
        {"const": {"$ref": "http://127.0.0.1/x"}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "string"},
        {"$schema": "http://json-schema.org/draft-07/schema", "type": "string"},
        {"$ref": "#name", "$defs": {"a": {"$anchor": "name", "type": "object"}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "object"}}},
        {"pattern": "^(a+)+$"},
        {"pattern": r"^\w{1,64}@[^\s@]{1,255}$"},
    ],
)
def test_a_schema_that_only_looks_harmful_is_taken(schema: dict[str, Any]) -> None:
    check_schema(schema)


def doubling(levels: int) -> dict[str, Any]:
    twice = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**twice, f"d{levels}": {"type": "string"}}}


def test_references_that_multiply_are_refused_before_anything_runs() -> None:
    assert "multiply" in str(refused(doubling(40)))
    compiled(doubling(5)).check("x")


def test_a_long_chain_of_references_is_refused_without_a_crash() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1900)}
    assert "multiply" in str(
        refused({"$ref": "#/$defs/d0", "$defs": {**chain, "d1900": {"type": "string"}}})
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$dynamicRef": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"},
    ],
)
def test_endless_recursion_neither_crashes_nor_hangs(schema: dict[str, Any]) -> None:
    compiled(schema).check({"a": nested(20)})


def test_a_tree_of_itself_takes_trees_and_refuses_others() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    compiled(tree).check(nested(50, []))
    assert violations(tree, [[], [1]]) == {("/1/0", 'the value is not of type "array"')}


def test_recursion_that_branches_is_explained_no_longer_than_it_may_take() -> None:
    branching = {
        "type": ["array", "integer"],
        "anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "maxItems": 9}],
    }
    compiled(branching).check(nested(60, 1))
    assert violations(branching, nested(60)) == {
        ("", "the value is too large to say where it fails")
    }


@given(schemas)
def test_no_schema_makes_the_check_raise_anything_else(schema: Any) -> None:
    raised = None
    try:
        compiled(schema).check({"a": "string"})
    except InvalidInput as error:
        raised = error
    assert raised is None or raised.violations


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    heard: list[bytes] = []

    class Hear(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            heard.append(self.request.recv(100))

    with socketserver.TCPServer(("127.0.0.1", 0), Hear) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1], heard
        server.shutdown()
        thread.join()


def test_nothing_is_ever_fetched(
    listener: tuple[int, list[bytes]], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, heard = listener
    (tmp_path / "s.json").write_text('{"type": "string"}')
    for target in (f"http://127.0.0.1:{port}/s.json", (tmp_path / "s.json").as_uri()):
        refused({"$ref": target})
        refused({"$schema": target})
        # a place that no keyword holds: the text check does not look there, the engine does
        refused({"$ref": "#/x/y", "x": {"y": {"$ref": target}}})
        refused({"$ref": "#/x/y", "x": {"y": {"$id": target, "$ref": "other"}}})
    assert heard == []


# --- Validator


def test_every_violation_is_listed_with_its_pointer() -> None:
    schema = {
        "type": "object",
        "required": ["x", "y"],
        "additionalProperties": False,
        "properties": {
            "a~/b": {"items": {"type": "integer"}},
            "e": {"enum": ["p", "q"]},
            "x": {"type": "object", "properties": {"n": {"minimum": 3}}},
        },
    }
    found = violations(schema, {"a~/b": [1, "v", 2.5], "e": "secret", "x": {"n": 1}, "z": 1})
    assert {pointer for pointer, _ in found} == {"", "/a~0~1b/1", "/a~0~1b/2", "/e", "/x/n"}
    texts = " ".join(message for _, message in found)
    assert '"y" is a required property' in texts
    assert "'z'" in texts
    assert "secret" not in texts


def test_the_error_names_the_subject_the_first_violation_and_how_many_more() -> None:
    with pytest.raises(InvalidInput, match=r"^The output does not fit .*/a: .* \(and 1 more\)$"):
        compiled({"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}).check(
            {"a": 1, "b": 2}, "The output"
        )


def test_violations_and_their_messages_are_bounded() -> None:
    numbers = {"items": {"type": "integer"}}
    assert len(violations(numbers, ["x"] * (MAX_VIOLATIONS + 50))) == MAX_VIOLATIONS
    assert violations(numbers, [1] * 200_000 + ["x"] * 200_000) == {
        ("/200000", 'the value is not of type "integer"')
    }
    ((_, message),) = violations({"enum": ["y" * 20_000]}, "x" * 1_000_000)
    assert len(message) <= 300


@pytest.mark.parametrize(
    "value",
    ["\ud800", nested(10_000), {1: 2}, {"a": object()}, 10**5000, float("nan")],
    ids=["surrogate", "deep", "number as key", "object", "huge integer", "nan"],
)
def test_a_value_that_is_no_plain_json_does_not_fit_and_does_not_crash(value: Any) -> None:
    schema = {"type": "array", "items": {"$ref": "#"}}
    assert violations(schema, value)
    assert not compiled(schema).matches(value)


def test_a_catastrophic_pattern_is_harmless() -> None:
    assert not compiled({"pattern": "^(a+)+$"}).matches("a" * 50_000 + "b")


def test_format_is_an_annotation() -> None:
    compiled({"format": "email"}).check("nobody")


def test_the_same_schema_is_compiled_once_whatever_its_order() -> None:
    assert compiled({"type": "object", "minProperties": 1}) is compiled(
        {"minProperties": 1, "type": "object"}
    )
