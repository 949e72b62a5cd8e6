"""OpenAI chat completions: content is a string or parts; a tool result is a message of role tool.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.messages._documents import TYPED_FILES, documents
from offload.messages._results import ResultBlocks
from offload.messages._shapes import ARGUMENTS, PLAIN, Shape
from offload.messages.access import Path, block_list, get, role_of, string_field, text_of, type_of
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.base import SYSTEM_ROLES
from offload.messages.calls import Calls
from offload.messages.media import TYPED

_RESULT_ROLES = ("tool", "function")
_RESULT = ResultBlocks(TYPED)
_DOCUMENTS = documents(TYPED_FILES, _RESULT)
# By kind of call: the field with the arguments, and their shape. Some servers send arguments as an object.
_ARGUMENTS: dict[str, tuple[str, Shape]] = {"function": ("arguments", ARGUMENTS), "custom": ("input", PLAIN)}


class OpenAIChatAdapter(MessageAdapter):
    """Messages of the OpenAI chat API and of the many servers with the same API."""

    name = "openai-chat"

    def claims(self, message: Any) -> bool:
        """Return whether it has a role or a field that only this format has."""
        role = get(message, "role")
        return (
            role in _RESULT_ROLES
            or role in SYSTEM_ROLES
            or get(message, "tool_calls") is not None
            or get(message, "function_call") is not None
            or (role == "assistant" and get(message, "content") is None)
        )

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        role, content = role_of(message, where), get(message, "content")
        scan = Scan.of_role(role, calls)
        if role in _RESULT_ROLES:
            call, name = get(message, "tool_call_id"), get(message, "name")
            if role == "tool":
                string_field(message, "tool_call_id", where, "a message of role tool")
            place = f"{where}.content"
            scan.add_result(
                None, ("content",), content, place, call=call, name=name, shape=_RESULT, documents=_DOCUMENTS
            )
            return scan.with_rest(message)
        scan.say_texts(message, (), "reasoning_content")
        if content is not None:
            scan.add_blocks(content, ("content",), f"{where}.content", _scan_part)
        made, first = get(message, "tool_calls"), len(block_list(content))
        if made is not None:
            scan.add_blocks(made, ("tool_calls",), f"{where}.tool_calls", _scan_call, first=first)
        # The older form of a call has no id.
        legacy = get(message, "function_call")
        if legacy is not None:
            block = first + len(block_list(made))
            name, arguments = get(legacy, "name"), get(legacy, "arguments")
            scan.add_arguments(block, ("function_call", "arguments"), None, name, arguments)
        return scan.with_rest(message)

    def results(self, message: Any) -> Sequence[Any]:
        """Return the call id of a message of role tool or function, which is one result."""
        return [get(message, "tool_call_id")] if get(message, "role") in _RESULT_ROLES else []


def _scan_part(scan: Scan, index: int, path: Path, part: Any, where: str) -> None:
    if scan.add_document(index, path, part, _DOCUMENTS) or scan.add_media(index, path, part, TYPED):
        return
    if type_of(part, where) == "text":
        scan.add_text(index, path, text_of(part, where), TYPED)


def _scan_call(scan: Scan, index: int, path: Path, call: Any, _where: str) -> None:
    scan.note_caller(call, "id")
    kind = next((kind for kind in _ARGUMENTS if get(call, kind)), None)
    if kind is not None:
        made, (field, shape) = get(call, kind), _ARGUMENTS[kind]
        place = (*path, kind, field)
        scan.add_call(index, place, get(call, "id"), get(made, "name"), get(made, field), shape=shape)
