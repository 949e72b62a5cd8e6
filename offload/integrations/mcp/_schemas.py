"""Output schemas of a wrapped server's tools: how they allow for what left, with nothing checked by them.

A schema is another server's data: its patterns could take for ever, its references lead anywhere. So
nothing is validated. What is shown to a client is loosened, where it is plain to see how, and strings are
replaced only where a schema says nothing of them but that they are strings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offload.integrations.mcp._context import Json

# The one field of the object that stands for structured content that left.
STAND_IN = "offloaded"
_STAND_IN_SCHEMA: Json = {
    "type": "string",
    "description": "In place of all else where that is large: what it is, an excerpt, how to read it.",
}

# Keywords that say nothing of which values are allowed, or of parts by name alone.
_SAYS_NOTHING = {
    "$comment",
    "$id",
    "$schema",
    "default",
    "deprecated",
    "description",
    "examples",
    "title",
    "type",
}
_OF_PARTS = {
    "$defs",
    "additionalProperties",
    "definitions",
    "properties",
    "required",
    "unevaluatedProperties",
}
_OF_ITEMS = {"items", "maxItems", "minItems"}


def with_stand_in(schema: object) -> Json | None:
    """Return `schema` loosened so that it allows the stand-in too, None if it is of another form.

    Args:
        schema: what a tool declares for its structured content.
    """
    if not isinstance(schema, dict) or not _is_plain(schema, "object", _OF_PARTS):
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or STAND_IN in properties:
        return None
    loosened = {k: v for k, v in schema.items() if k != "required"}
    choice = {"anyOf": [{"required": required}, {"required": [STAND_IN]}]} if required else {}
    return {**loosened, "properties": {**properties, STAND_IN: _STAND_IN_SCHEMA}, **choice}


def with_strings_replaced(value: Any, schema: Any, replace: Callable[[str], str]) -> Any:
    """Return `value` with those strings replaced of which `schema` says that they are, and no more."""
    match schema, value:
        case {"type": "string"}, str() if _is_plain(schema, "string", set()):
            return replace(value)
        case {"properties": dict(properties)}, dict() if _is_plain(schema, "object", _OF_PARTS):
            return {k: with_strings_replaced(v, properties.get(k), replace) for k, v in value.items()}
        case {"items": items}, list() if _is_plain(schema, "array", _OF_ITEMS):
            return [with_strings_replaced(v, items, replace) for v in value]
    return value


def _is_plain(schema: Json, kind: str, keywords: set[str]) -> bool:
    said = {name for name in schema if not name.startswith("x-")}
    return schema.get("type") == kind and said <= _SAYS_NOTHING | keywords
