"""Output schemas of a wrapped server's tools, loosened to allow offloaded content.

A schema is untrusted data: its patterns may never finish, its references may point anywhere. So nothing is
validated. A schema of a plain form is loosened for the client, and a string is replaced only if its schema
requires nothing but a string.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offload.integrations.mcp._context import Json

# The only field of the object that replaces offloaded structured content.
STAND_IN = "offloaded"
_STAND_IN_SCHEMA: Json = {
    "type": "string",
    "description": "Replaces all other fields of a large result: description, excerpt, and how to read it.",
}

# Keywords that restrict no values, and keywords about members and items.
_ANNOTATIONS = {
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
_MEMBERS = {
    "$defs",
    "additionalProperties",
    "definitions",
    "properties",
    "required",
    "unevaluatedProperties",
}
_ITEMS = {"items", "maxItems", "minItems"}


def with_stand_in(schema: object) -> Json | None:
    """Return the output schema of a tool, loosened to allow the stand-in; None for an unsupported form."""
    if not isinstance(schema, dict) or not _is_plain(schema, "object", _MEMBERS):
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or STAND_IN in properties:
        return None
    loosened = {k: v for k, v in schema.items() if k != "required"}
    choice = {"anyOf": [{"required": required}, {"required": [STAND_IN]}]} if required else {}
    return {**loosened, "properties": {**properties, STAND_IN: _STAND_IN_SCHEMA}, **choice}


def with_strings_replaced(value: Any, schema: Any, replace: Callable[[str], str]) -> Any:
    """Return `value` with the strings replaced whose schema requires nothing but a string."""
    match schema, value:
        case {"type": "string"}, str() if _is_plain(schema, "string", set()):
            return replace(value)
        case {"properties": dict(properties)}, dict() if _is_plain(schema, "object", _MEMBERS):
            return {k: with_strings_replaced(v, properties.get(k), replace) for k, v in value.items()}
        case {"items": items}, list() if _is_plain(schema, "array", _ITEMS):
            return [with_strings_replaced(v, items, replace) for v in value]
    return value


def _is_plain(schema: Json, kind: str, keywords: set[str]) -> bool:
    used = {name for name in schema if not name.startswith("x-")}
    return schema.get("type") == kind and used <= _ANNOTATIONS | keywords
