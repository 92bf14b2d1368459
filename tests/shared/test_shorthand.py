import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidInput
from shared.schemas import check_schema
from shared.shorthand import normalise

words = st.sampled_from(
    ["string", "integer", "text", "type", "properties", "required", "items", "a", "$ref", "#"]
)
schemas = st.recursive(
    words | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, {"type": "object"}),
        ({}, {"type": "object"}),
        (
            {"content": "string"},
            {"type": "object", "properties": {"content": {"type": "string"}}},
        ),
        (
            {
                "a": {"type": "string", "required": True},
                "b": {"type": "integer", "required": False},
            },
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                "required": ["a"],
            },
        ),
        (
            {
                "type": "object",
                "required": ["x"],
                "properties": {"x": "string", "a": {"b": "string", "c": {"d": "integer"}}},
            },
            {
                "type": "object",
                "required": ["x"],
                "properties": {
                    "x": {"type": "string"},
                    "a": {
                        "type": "object",
                        "properties": {
                            "b": {"type": "string"},
                            "c": {"type": "object", "properties": {"d": {"type": "integer"}}},
                        },
                    },
                },
            },
        ),
        (
            {"type": "object", "required": ["x"], "properties": {"y": {"required": True}, "x": {}}},
            {"type": "object", "required": ["x", "y"], "properties": {"y": {}, "x": {}}},
        ),
        (
            {"properties": {"a": "string"}},
            {"type": "object", "properties": {"a": {"type": "string"}}},
        ),
        (
            {"type": {"type": "string"}, "required": {"type": "boolean"}},
            {
                "type": "object",
                "properties": {"type": {"type": "string"}, "required": {"type": "boolean"}},
            },
        ),
        (
            {"title": "string", "description": "string"},
            {
                "type": "object",
                "properties": {"title": {"type": "string"}, "description": {"type": "string"}},
            },
        ),
        ({"description": "Anything"}, {"type": "object", "description": "Anything"}),
        ({"type": "array", "items": "string"}, {"type": "array", "items": {"type": "string"}}),
        ({"anyOf": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": "string"}},
            {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        ),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b"]}),
    ],
)
def test_shorthand_becomes_the_schema_it_means(written: Any, meant: dict[str, Any]) -> None:
    before = json.dumps(written)
    assert normalise(written) == meant
    assert json.dumps(written) == before
    check_schema(normalise(written))


@given(schemas.filter(lambda schema: isinstance(schema, dict)))
def test_a_repaired_schema_needs_no_repair(schema: dict[str, Any]) -> None:
    once = normalise(schema)
    assert normalise(once) == once


def test_a_property_of_no_known_type_is_refused_and_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_schema(normalise({"content": "text"}))
    assert caught.value.violations[0]["pointer"] == "/properties/content"


@pytest.mark.parametrize("written", [[], ["string"], 3, True, "text"])
def test_what_is_no_object_is_no_schema(written: Any) -> None:
    with pytest.raises(InvalidInput, match="JSON object"):
        normalise(written)


def test_a_schema_nested_ten_thousand_levels_is_left_for_the_check_to_refuse() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(InvalidInput, match="nested deeper"):
        check_schema(normalise(schema))
