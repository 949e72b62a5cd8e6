"""A large text in each string field of each message of an SDK: it leaves, or an error names it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from kit.conversation import from_user
from pydantic import TypeAdapter

from offload import Offloader, OffloadPolicy

LARGE = "\n".join(f"line {n} has some words to read" for n in range(60))
CEILING = OffloadPolicy.model_validate({"max_view_tokens": 200, "cost_plan": "none"})
# An SDK has them for a step that it does not know, and for a reference without a type.
NOT_OF_THE_API = {"UNKNOWN", None}
Json = dict[str, Any]


class Schema:
    """A JSON schema of messages: the least of each, and with a large text in each field in turn."""

    def __init__(self, whole: Json) -> None:
        self.whole = whole

    def _resolved(self, part: Json) -> tuple[Json, str | None]:
        name = None
        while "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            part = self.whole["$defs"][name]
        return part, name

    def least(self, part: Json, within: tuple[str | None, ...] = ()) -> Any:
        """Return a small value. Raises `RecursionError` if it would have to hold itself."""
        part, name = self._resolved(part)
        if name and name in within:
            raise RecursionError
        within = (*within, name)
        if "const" in part or "enum" in part:
            return part.get("const", next(iter(part.get("enum", ())), None))
        for option in _options(part):
            try:
                return self.least(option, within)
            except RecursionError:
                continue
        fields = part.get("properties", {})
        needed = [n for n in fields if n in part.get("required", ()) or "const" in fields[n]]
        made = {n: self.least(fields[n], within) for n in needed}
        small = {"string": "s", "integer": 1, "number": 1.0, "boolean": False, "array": [], "object": made}
        return small.get(part.get("type", ""))

    def filled(self, part: Json, within: tuple[str | None, ...] = ()) -> Iterator[Any]:
        """Yield values with the text in one field each; a definition inside itself once."""
        part, name = self._resolved(part)
        if "const" in part or "enum" in part or (name and name in within):
            return
        within = (*within, name)
        options, kind = _options(part), part.get("type")
        for option in options:
            yield from self.filled(option, within)
        if kind == "string" or (kind is None and not options):
            yield LARGE
        elif kind == "array":
            yield from ([value] for value in self.filled(part.get("items", {}), within))
        elif kind == "object":
            yield from self._objects(part, within)

    def _objects(self, part: Json, within: tuple[str | None, ...]) -> Iterator[Json]:
        least = self.least(part)
        for name, field in part.get("properties", {}).items():
            yield from ({**least, name: value} for value in self.filled(field, within))
        others = part.get("additionalProperties", "properties" not in part)
        if others:
            held = others if isinstance(others, dict) else {}
            yield from ({**least, "other": value} for value in self.filled(held, within))


def _options(part: Json) -> list[Json]:
    return next((part[key] for key in ("anyOf", "oneOf", "allOf") if key in part), [])


def of_botocore() -> Json:
    """Return the schema of a message of Bedrock's Converse API."""
    session = pytest.importorskip("botocore.session").get_session()
    service = session.get_service_model("bedrock-runtime")
    messages = service.operation_model("Converse").input_shape.members["messages"]
    names: Json = {}
    return {**_of_shape(messages.member, names), "$defs": names}


def _of_shape(shape: Any, names: Json) -> Json:
    kind = shape.type_name
    if kind == "structure":
        if shape.name not in names:
            names[shape.name] = {}
            fields = {name: _of_shape(member, names) for name, member in shape.members.items()}
            ones = [{"type": "object", "properties": {n: f}, "required": [n]} for n, f in fields.items()]
            whole = {"type": "object", "properties": fields, "required": shape.required_members}
            names[shape.name] |= {"anyOf": ones} if shape.is_tagged_union else whole
        return {"$ref": f"#/$defs/{shape.name}"}
    if kind == "list":
        return {"type": "array", "items": _of_shape(shape.member, names)}
    if kind == "map":
        return {"type": "object", "additionalProperties": _of_shape(shape.value, names)}
    # Bytes hold no text.
    return (
        {"enum": enum}
        if (enum := getattr(shape, "enum", None))
        else {"type": "null" if kind == "blob" else kind}
    )


SDK_TYPES = {
    "anthropic": "anthropic.types.beta:BetaMessageParam",
    "openai-chat": "openai.types.chat:ChatCompletionMessageParam",
    "openai-responses": "openai.types.responses:ResponseInputItemParam",
    "gemini": "google.genai.types:Content",
    "gemini-interactions": "google.genai.interactions:Step",
    "langchain": "langchain_core.messages.content:ContentBlock",
    "bedrock": "",
}


def filled_messages(name: str) -> Iterator[Any]:
    module, _, kind = SDK_TYPES[name].partition(":")
    if not module:
        schema = Schema(of_botocore())
    else:
        pytest.importorskip(module.partition(".")[0])
        schema = Schema(TypeAdapter(getattr(importlib.import_module(module), kind)).json_schema())
    for made in schema.filled(schema.whole):
        if name != "langchain":
            yield made
        else:
            yield {"type": "tool", "data": {"type": "tool", "tool_call_id": "c", "content": [made]}}


def fate(message: Any) -> str:
    """Return what became of the text in a message; empty if it remains and nothing says so."""
    off = Offloader("memory://", session="s", policy=CEILING)
    messages = [from_user("Look."), message]
    out = off.offload(messages)
    assert off.restore(out.messages) == messages
    if repr(LARGE)[1:-1] not in repr(out.messages):
        return "left" if out.records else "lost"
    said = "; ".join(map(str, out.errors))
    kept = [d for d in out.decisions if d.ref is None and d.item.tokens > 200]
    # A picture is counted as one, whatever its data.
    is_picture = f"'data': {LARGE!r}" in repr(message) and "media" in out.decisions[-1].item.item_type
    return said or ("kept" if kept or is_picture else "")


@pytest.mark.parametrize("name", SDK_TYPES)
def test_a_large_text_in_any_field_of_an_sdk_leaves_or_is_named(name: str) -> None:
    fates = [(message, fate(message)) for message in filled_messages(name)]

    assert [message for message, said in fates if said in ("", "lost")] == []
    assert any(said == "left" for _, said in fates)
    unknown = [m for m, said in fates if "no known format" in said]
    assert {m.get("type") for m in unknown} <= NOT_OF_THE_API
