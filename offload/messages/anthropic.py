"""Anthropic Messages: content is a string or blocks; a tool's result is a block of a user message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offload.errors import MessageError
from offload.messages import _tool_text
from offload.messages._base import (
    Item,
    Scan,
    blocks_of,
    changed,
    get,
    json_text,
    like,
    role_of,
    text_of,
    type_of,
)

TEXT_TYPES = {
    "user": "user_message",
    "assistant": "assistant_message",
    "system": "system_prompt",
    "developer": "system_prompt",
}


class AnthropicAdapter:
    """Messages of the Anthropic API, and plain role-and-text messages of any."""

    name = "anthropic"

    def claims(self, message: Any) -> bool:
        """Tell whether a block is of a kind that only this format has."""
        content = get(message, "content")
        own = ("tool_use", "tool_result", "thinking", "redacted_thinking")
        return isinstance(content, list) and any(get(b, "type") in own for b in content)

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds."""
        scan = Scan()
        item_type = TEXT_TYPES.get(role_of(message, where), "user_message")
        content = get(message, "content")
        if isinstance(content, str):
            scan.items.append(Item(None, item_type, content))
            return scan
        for i, block in enumerate(blocks_of(content, f"{where}.content")):
            place = f"{where}.content[{i}]"
            kind = type_of(block, place)
            if kind == "text":
                scan.items.append(Item(i, item_type, text_of(block, place)))
            elif kind == "tool_result":
                scan.items.extend(_tool_result(block, i, place, tool_names))
            elif kind == "tool_use":
                scan.calls[str(get(block, "id"))] = str(get(block, "name"))
                scan.texts.append(json_text(get(block, "input")))
            elif kind == "thinking":
                scan.texts.append(str(get(block, "thinking") or ""))
        return scan

    def replace(self, message: Any, block: int | None, text: str) -> Any:
        """Return a copy of `message` with the item at `block` replaced by `text`."""
        return _edited(message, block, text, lambda content: _tool_text.replace(content, text))

    def restore(self, message: Any, block: int | None, text: str, form: str | None) -> Any:
        """Return a copy of `message` with the item at `block` as it was."""
        return _edited(message, block, text, lambda content: _tool_text.restore(content, text, form))


def _edited(message: Any, block: int | None, text: str, edit_result: Callable[[Any], Any]) -> Any:
    if block is None:
        return changed(message, "content", text)
    blocks = list(get(message, "content"))
    old = blocks[block]
    if get(old, "type") == "tool_result":
        blocks[block] = changed(old, "content", edit_result(get(old, "content")))
    else:
        blocks[block] = changed(old, "text", text)
    return changed(message, "content", like(get(message, "content"), blocks))


def _tool_result(block: Any, index: int, where: str, tool_names: Mapping[str, str]) -> list[Item]:
    call = get(block, "tool_use_id")
    if not isinstance(call, str):
        raise MessageError(f'{where}: a tool_result block needs a string "tool_use_id", got {call!r:.40}')
    found = _tool_text.read(get(block, "content"), f"{where}.content")
    if found is None:
        return []
    text, form = found
    is_error = get(block, "is_error") is True
    return [Item(index, "tool_result", text, tool_names.get(call), call, is_error, form)]
