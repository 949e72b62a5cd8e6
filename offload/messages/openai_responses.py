"""OpenAI Responses: a flat list of items, told by their type; a tool's result is an item of its own.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from offload.messages._access import Path, blocks_of, get, json_text, role_of, string_or_none, text_of
from offload.messages._base import TEXT_TYPES, Block, Item, MessageAdapter, Scan, Shape
from offload.messages._content import Content
from offload.messages._json import ARGUMENTS, PLAIN
from offload.messages._media import Media, Place

_TEXT_BLOCKS = ("input_text", "output_text")
_OWN_BLOCKS = (*_TEXT_BLOCKS, "input_image", "input_file")
# Items beside messages, by how their type ends; "reasoning" and the rest are named in full.
_OWN_ENDINGS = ("_call", "_call_output")
_OWN_TYPES = (
    "reasoning",
    "item_reference",
    "compaction",
    "compaction_trigger",
    "program",
    "program_output",
    "tool_search_output",
    "additional_tools",
    "configuration_update",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
)
_CONTENT = Content("input_text")
_MEDIA = Media([Place(("image_url",)), Place(("file_data",))], {"type": "input_text"})
# By type, the shape of the field `output`. That of the local shell is JSON by its documentation.
_OUTPUTS: dict[str, Shape] = {
    "function_call_output": _CONTENT,
    "custom_tool_call_output": _CONTENT,
    "apply_patch_call_output": _CONTENT,
    "mcp_call": _CONTENT,
    "local_shell_call_output": ARGUMENTS,
}
# By type, the field that holds what the model wrote, and its shape.
_INPUTS: dict[str, tuple[str, Shape]] = {
    "function_call": ("arguments", ARGUMENTS),
    "mcp_call": ("arguments", ARGUMENTS),
    "custom_tool_call": ("input", PLAIN),
}
# What the model wrote in calls of tools that the API itself defines.
_BUILT_IN_INPUTS = ("action", "operation", "code")
_STREAMS = ("stdout", "stderr")
# What the API says of an item that has not come to its end.
_PENDING = ("in_progress", "incomplete", "calling")


class OpenAIResponsesAdapter(MessageAdapter):
    """Items of the OpenAI Responses API, input and output."""

    name = "openai-responses"

    def claims(self, message: Any) -> bool:
        """Tell whether the type of the item, or of a block in it, is one that only this format has."""
        kind, content = get(message, "type"), get(message, "content")
        if get(message, "role") is None:
            return isinstance(kind, str) and (kind in _OWN_TYPES or kind.endswith(_OWN_ENDINGS))
        return isinstance(content, list | tuple) and any(get(b, "type") in _OWN_BLOCKS for b in content)

    def role(self, message: Any, where: str) -> str:
        """Return the role of a message, "assistant" for the other items that a model makes."""
        if get(message, "role") is not None:
            return role_of(message, where)
        kind = get(message, "type")
        return "assistant" if kind in ("reasoning", "program") or kind.endswith("_call") else "tool"

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds."""
        scan = Scan()
        if get(message, "role") is not None:
            _scan_message(scan, message, where)
        elif get(message, "type") == "reasoning":
            blocks = [*(get(message, "summary") or ()), *(get(message, "content") or ())]
            scan.texts.extend(text for b in blocks if isinstance(text := get(b, "text"), str))
        else:
            scan.note_caller(message, "call_id", "id")
            _scan_call(scan, message)
            _scan_output(scan, message, where, tool_names)
        if get(message, "status") in _PENDING:
            scan.mark_pending()
        return scan

    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""
        kind, at = get(message, "type"), cast("int", block)  # an output is an item of its own
        if get(message, "role") is not None:
            return ("content", at), _MEDIA
        if block is None:
            return ("output",), _OUTPUTS[kind]
        if isinstance(block, tuple):
            return ("output", block[1]), _MEDIA
        if kind == "shell_call_output":
            return ("output", at // 2, _STREAMS[at % 2]), PLAIN
        if kind.endswith("_output"):
            return ("output", at), _MEDIA
        field, shape = _INPUTS[kind]
        return (field,), shape


def _scan_message(scan: Scan, message: Any, where: str) -> None:
    item_type = TEXT_TYPES.get(role_of(message, where), "user_message")
    for i, block in enumerate(blocks_of(get(message, "content"), f"{where}.content")):
        if item_type == "user_message" and scan.add_media(i, item_type, _MEDIA.read(block)):
            continue
        if get(block, "type") in _TEXT_BLOCKS:
            scan.items.append(Item(i, item_type, text_of(block, f"{where}.content[{i}]")))


def _scan_call(scan: Scan, message: Any) -> None:
    kind = get(message, "type")
    call = get(message, "call_id") or get(message, "id")
    if kind in _INPUTS:
        field, shape = _INPUTS[kind]
        value = get(message, field)
        text = string_or_none(value)
        plain = None if text is None else (text, None)
        found = ARGUMENTS.read(value) if shape is ARGUMENTS else plain
        scan.add_call(0, call, get(message, "name"), found, value)
    elif kind == "program" or kind.endswith("_call"):
        if isinstance(call, str):
            scan.calls[call] = kind.removesuffix("_call")
        written = (get(message, field) for field in _BUILT_IN_INPUTS)
        scan.texts.extend(json_text(_plain(value)) for value in written if value is not None)


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if hasattr(value, "model_dump") else value


def _scan_output(scan: Scan, message: Any, where: str, tool_names: Mapping[str, str]) -> None:
    kind, output = get(message, "type"), get(message, "output")
    call = get(message, "call_id") or get(message, "id")
    name = tool_names.get(call, get(message, "name")) if isinstance(call, str) else get(message, "name")
    if kind == "shell_call_output":
        for i, chunk in enumerate(blocks_of(output, f"{where}.output")):
            for j, stream in enumerate(_STREAMS):
                text = get(chunk, stream)
                if isinstance(text, str) and text:
                    scan.add_result(2 * i + j, call, name, (text, None))
    elif kind == "program_output":
        scan.texts.append(json_text(get(message, "result")))
    elif kind == "local_shell_call_output":
        scan.add_result(None, call, name, ARGUMENTS.read(output))
    elif kind in _OUTPUTS:
        is_error = get(message, "status") == "failed" or bool(get(message, "error"))
        scan.add_result(None, call, name, _CONTENT.read(output, f"{where}.output"), is_error=is_error)
        # A call that holds its own result has its arguments as block 0.
        scan.add_result_media(output, _MEDIA, call, name, 0 if kind in _INPUTS else None)
