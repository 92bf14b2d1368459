"""Shorthand for schemas: what people write where JSON Schema is meant, made into JSON Schema.

``{"content": "string"}`` is what marketplaces store and models are then refused for; providers
want ``{"type": "object", "properties": {"content": {"type": "string"}}}``.
"""

from collections.abc import Mapping
from typing import Any

from shared.errors import ErrorCode, InvalidInput

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
MAX_DEPTH = 32
"""Levels that are repaired; the check of schemas refuses what is nested deeper."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by name."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords that hold a list of schemas."""
SINGLES = (
    "items", "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if",
    "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
"""Keywords that hold one schema."""

ANNOTATIONS = (
    "title", "description", "default", "deprecated", "examples", "readOnly", "writeOnly",
)  # fmt: skip
"""Keywords that say nothing about validity; they are common names of properties, too."""

SHAPES: dict[str, type | tuple[type, ...]] = {
    "$ref": str, "$dynamicRef": str, "$recursiveRef": str, "$schema": str, "$id": str,
    "$anchor": str, "$defs": dict, "definitions": dict, "dependentSchemas": dict,
    "type": (str, list), "enum": list, "const": object, "required": list,
    "properties": dict, "patternProperties": dict, "propertyNames": (dict, bool),
    "additionalProperties": (dict, bool), "unevaluatedProperties": (dict, bool),
    "items": (dict, list, bool), "prefixItems": list, "contains": (dict, bool),
    "allOf": list, "anyOf": list, "oneOf": list, "not": (dict, bool), "if": (dict, bool),
    "minimum": (int, float), "maximum": (int, float), "multipleOf": (int, float),
    "exclusiveMinimum": (int, float, bool), "exclusiveMaximum": (int, float, bool),
    "minLength": int, "maxLength": int, "pattern": str, "format": str,
    "minItems": int, "maxItems": int, "uniqueItems": bool,
    "minProperties": int, "maxProperties": int,
}  # fmt: skip
"""Keywords that make an object a schema when they hold this; else they are names of properties."""


def normalise(schema: object) -> dict[str, Any]:
    """Return the JSON Schema that a stored or sent one means; the argument stays as it is.

    None (absent) takes any object. An object without a keyword of JSON Schema is a map of
    properties. A property may be a type's name; ``required: true`` on it moves to its parent's
    list. Raises InvalidInput for what is no object at all; validity is not judged here.
    """
    if schema is None or schema == {}:
        return {"type": "object"}
    if names_type(schema):
        return {"type": schema}
    if not isinstance(schema, Mapping):
        raise InvalidInput(
            'A schema must be a JSON object, such as {"type": "object", "properties": {}}',
            [{"pointer": "", "message": "not a JSON object"}],
            code=ErrorCode.INVALID_SCHEMA,
        )
    repaired: dict[str, Any] = repair(dict(schema), MAX_DEPTH)
    if isinstance(repaired.get("required"), bool):
        del repaired["required"]  # the root has no parent that could list it
    if "type" not in repaired and ("properties" in repaired or not keywords(repaired)):
        return {"type": "object", **repaired}
    return repaired


def repair(schema: Any, levels: int) -> Any:
    """Repair one schema and those in it; what is no object or type name is left alone."""
    if names_type(schema):
        return {"type": schema}
    if not isinstance(schema, dict) or levels == 0:
        return schema
    if bare(schema):
        flag = schema.get("required")
        lifted = {"required": flag} if isinstance(flag, bool) else {}
        names = {name: value for name, value in schema.items() if name not in lifted}
        schema = {"type": "object", "properties": names, **lifted}
    result = dict(schema)
    for keyword in MAPS:
        if isinstance(schema.get(keyword), dict):
            result[keyword] = {
                name: repair(value, levels - 1) for name, value in schema[keyword].items()
            }
    for keyword in (*LISTS, *SINGLES):
        value = schema.get(keyword)
        if isinstance(value, list):
            result[keyword] = [repair(item, levels - 1) for item in value]
        elif keyword in SINGLES and value is not None:
            result[keyword] = repair(value, levels - 1)
    return promoted(result)


def promoted(schema: dict[str, Any]) -> dict[str, Any]:
    """Move each property's scalar ``required`` to the schema's own list, in order."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    flagged = {
        name: value["required"]
        for name, value in properties.items()
        if isinstance(value, dict) and isinstance(value.get("required"), bool)
    }
    if not flagged:
        return schema
    own = schema.get("required")
    names = [*(own if isinstance(own, list) else []), *(name for name, on in flagged.items() if on)]
    result = dict(schema)
    result["properties"] = {
        name: {k: v for k, v in value.items() if k != "required"} if name in flagged else value
        for name, value in properties.items()
    }
    if names:
        result["required"] = list(dict.fromkeys(names))
    return result


def bare(schema: dict[str, Any]) -> bool:
    """Tell whether an object is a map of properties rather than a schema.

    It is when no keyword holds what that keyword must, and something in it looks like a property:
    an object, or a type's name. ``{"description": "A text"}`` alone is an annotated schema.
    """
    if keywords(schema):
        return False
    return any(
        isinstance(value, dict) or names_type(value) or not annotation(name)
        for name, value in schema.items()
        if not (name == "required" and isinstance(value, bool))
    )


def keywords(schema: dict[str, Any]) -> bool:
    """Tell whether an object holds a keyword in earnest, with a value of the right kind."""
    return any(
        name in SHAPES and isinstance(value, SHAPES[name]) and not typed(name, value)
        for name, value in schema.items()
    )


def typed(name: str, value: object) -> bool:
    """Tell whether a keyword's name is more likely a property's: ``{"format": "string"}``."""
    return name in {"format", "pattern"} and names_type(value)


def names_type(value: object) -> bool:
    """Tell whether a value is the name of one of JSON Schema's types."""
    return isinstance(value, str) and value in TYPES


def annotation(name: str) -> bool:
    """Tell whether a name is an annotation's, or an extension's."""
    return name in ANNOTATIONS or name.startswith(("x-", "$"))
