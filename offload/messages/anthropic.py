"""Anthropic Messages: content is a string or blocks; a tool's result is a block of a user message.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload.errors import MessageError
from offload.messages._access import Path, blocks_of, get, role_of, text_of, type_of
from offload.messages._base import TEXT_TYPES, Block, Item, MessageAdapter, Scan, Shape
from offload.messages._content import Content
from offload.messages._json import ARGUMENTS, PLAIN
from offload.messages._media import TYPED

_OWN_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
_RESULT = Content()


class AnthropicAdapter(MessageAdapter):
    """Messages of the Anthropic API, and plain role-and-text messages of any."""

    name = "anthropic"

    def claims(self, message: Any) -> bool:
        """Tell whether a block is of a kind that only this format has."""
        content = get(message, "content")
        return isinstance(content, list) and any(get(b, "type") in _OWN_BLOCKS for b in content)

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
            scan.note_caller(block, "id", "tool_use_id")
            if item_type == "user_message" and scan.add_media(i, item_type, TYPED.read(block)):
                continue
            if kind == "text":
                scan.items.append(Item(i, item_type, text_of(block, place)))
            elif kind == "tool_result":
                _scan_result(scan, block, i, place, tool_names)
            elif kind == "tool_use":
                arguments = get(block, "input")
                scan.add_call(i, get(block, "id"), get(block, "name"), ARGUMENTS.read(arguments), arguments)
            elif kind == "thinking":
                scan.texts.append(str(get(block, "thinking") or ""))
        return scan

    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""
        if block is None:
            return ("content",), PLAIN
        if isinstance(block, tuple):
            return ("content", block[0], "content", block[1]), TYPED
        kind = get(get(message, "content")[block], "type")
        if kind == "tool_result":
            return ("content", block, "content"), _RESULT
        if kind == "tool_use":
            return ("content", block, "input"), ARGUMENTS
        return ("content", block), TYPED


def _scan_result(scan: Scan, block: Any, index: int, where: str, tool_names: Mapping[str, str]) -> None:
    call = get(block, "tool_use_id")
    if not isinstance(call, str):
        raise MessageError(f'{where}: a tool_result block needs a string "tool_use_id", got {call!r:.40}')
    content = get(block, "content")
    found = _RESULT.read(content, f"{where}.content")
    scan.add_result(index, call, tool_names.get(call), found, is_error=get(block, "is_error") is True)
    scan.add_result_media(content, TYPED, call, tool_names.get(call), index)
