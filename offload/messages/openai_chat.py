"""OpenAI chat completions: content is a string or parts; a tool's result is a message of role tool.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from offload.errors import MessageError
from offload.messages._access import (
    Path,
    blocks_of,
    count_blocks,
    get,
    role_of,
    string_or_none,
    text_of,
    type_of,
)
from offload.messages._base import TEXT_TYPES, Block, Item, MessageAdapter, Scan, Shape
from offload.messages._content import Content
from offload.messages._json import ARGUMENTS, PLAIN
from offload.messages._media import TYPED

_RESULT_ROLES = ("tool", "function")
_CONTENT = Content()


class OpenAIChatAdapter(MessageAdapter):
    """Messages of the OpenAI chat API and of the many servers that speak it."""

    name = "openai-chat"

    def claims(self, message: Any) -> bool:
        """Tell whether the role or a field is one that only this format has."""
        role = get(message, "role")
        return (
            role in _RESULT_ROLES
            or role in ("system", "developer")
            or get(message, "tool_calls") is not None
            or get(message, "function_call") is not None
            or (role == "assistant" and get(message, "content") is None)
        )

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds."""
        role = role_of(message, where)
        if role in _RESULT_ROLES:
            return _scan_result(message, where, tool_names)
        scan = Scan()
        reasoning = get(message, "reasoning_content")
        if isinstance(reasoning, str):
            scan.texts.append(reasoning)
        content = get(message, "content")
        item_type = TEXT_TYPES.get(role, "user_message")
        if isinstance(content, str):
            scan.items.append(Item(None, item_type, content))
        elif content is not None:
            for i, part in enumerate(blocks_of(content, f"{where}.content")):
                place = f"{where}.content[{i}]"
                if item_type == "user_message" and scan.add_media(i, item_type, TYPED.read(part)):
                    continue
                if type_of(part, place) == "text":
                    scan.items.append(Item(i, item_type, text_of(part, place)))
        _scan_calls(scan, message, where)
        return scan

    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""
        if block is None:
            return ("content",), _CONTENT
        at = cast("int", block)  # a result is a message of its own
        parts = count_blocks(get(message, "content"))
        if at < parts:
            return ("content", at), TYPED
        index = at - parts
        kind = _kind(get(message, "tool_calls")[index])
        if kind == "function":
            return ("tool_calls", index, "function", "arguments"), ARGUMENTS
        return ("tool_calls", index, "custom", "input"), PLAIN


def _kind(call: Any) -> str | None:
    return next((kind for kind in ("function", "custom") if get(call, kind)), None)


def _scan_result(message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
    call, name = get(message, "tool_call_id"), get(message, "name")
    if get(message, "role") == "tool" and not isinstance(call, str):
        raise MessageError(f'{where}: a message of role tool needs a string "tool_call_id", got {call!r:.40}')
    scan = Scan()
    if isinstance(call, str):
        name = tool_names.get(call, name)
    content = get(message, "content")
    scan.add_result(None, call, name, _CONTENT.read(content, f"{where}.content"))
    scan.add_result_media(content, TYPED, call, name)
    return scan


def _scan_calls(scan: Scan, message: Any, where: str) -> None:
    calls = get(message, "tool_calls")
    first = count_blocks(get(message, "content"))
    for i, call in enumerate(blocks_of([] if calls is None else calls, f"{where}.tool_calls"), first):
        scan.note_caller(call, "id")
        kind = _kind(call)
        if kind is None:
            continue
        made = get(call, kind)
        if kind == "function":
            # Some servers hand arguments over as an object.
            value = get(made, "arguments")
            found = ARGUMENTS.read(value)
        else:
            value = string_or_none(get(made, "input"))
            found = None if value is None else (value, None)
        scan.add_call(i, get(call, "id"), get(made, "name"), found, value)
