"""OpenAI chat completions: content is a string or parts; a tool's result is a message of role tool."""

from __future__ import annotations

from collections.abc import Mapping
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
from offload.messages.anthropic import TEXT_TYPES

_RESULT_ROLES = ("tool", "function")


class OpenAIChatAdapter:
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
        _scan_calls(scan, message, where)
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
                if type_of(part, place) == "text":
                    scan.items.append(Item(i, item_type, text_of(part, place)))
        return scan

    def replace(self, message: Any, block: int | None, text: str) -> Any:
        """Return a copy of `message` with the item at `block` replaced by `text`."""
        if block is not None:
            return _with_part(message, block, text)
        return changed(message, "content", _tool_text.replace(get(message, "content"), text))

    def restore(self, message: Any, block: int | None, text: str, form: str | None) -> Any:
        """Return a copy of `message` with the item at `block` as it was."""
        if block is not None:
            return _with_part(message, block, text)
        return changed(message, "content", _tool_text.restore(get(message, "content"), text, form))


def _with_part(message: Any, block: int, text: str) -> Any:
    parts = list(get(message, "content"))
    parts[block] = changed(parts[block], "text", text)
    return changed(message, "content", like(get(message, "content"), parts))


def _scan_result(message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
    call, name = get(message, "tool_call_id"), get(message, "name")
    if get(message, "role") == "tool" and not isinstance(call, str):
        raise MessageError(f'{where}: a message of role tool needs a string "tool_call_id", got {call!r:.40}')
    scan = Scan()
    found = _tool_text.read(get(message, "content"), f"{where}.content")
    if found is not None:
        text, form = found
        name = name if isinstance(name, str) else None
        call = call if isinstance(call, str) else None
        tool_name = tool_names.get(call, name) if isinstance(call, str) else name
        scan.items.append(Item(None, "tool_result", text, tool_name, call, form=form))
    return scan


def _scan_calls(scan: Scan, message: Any, where: str) -> None:
    calls = get(message, "tool_calls")
    for call in blocks_of([] if calls is None else calls, f"{where}.tool_calls"):
        function = get(call, "function") or get(call, "custom")
        if function is None:
            continue
        scan.calls[str(get(call, "id"))] = str(get(function, "name"))
        # Some servers hand arguments over as an object.
        arguments = get(function, "arguments") or get(function, "input") or ""
        scan.texts.append(arguments if isinstance(arguments, str) else json_text(arguments))
