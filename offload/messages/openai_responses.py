"""OpenAI Responses: a flat list of items that name their type; a tool result is an item of its own.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.messages._documents import TYPED_FILES, documents
from offload.messages._results import ResultBlocks
from offload.messages._shapes import ARGUMENTS, PLAIN, Shape
from offload.messages.access import Path, block_list, blocks_of, get, role_of, text_of
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.calls import Calls
from offload.messages.media import DataPaths, Media

_TEXT_BLOCKS = ("input_text", "output_text")
_OWN_BLOCKS = (*_TEXT_BLOCKS, "input_image", "input_file")
_CALLED = ("function", "custom_tool", "apply_patch", "computer", "local_shell", "shell")
_ITEMS = frozenset(
    {"message", "reasoning", "item_reference", "compaction", "compaction_trigger"}
    | {"additional_tools", "configuration_update"}
    | {f"{tool}_call{end}" for tool in _CALLED for end in ("", "_output")}
    | {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
    | {"mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}
    | {"program", "program_output", "tool_search_call", "tool_search_output"}
)
_MEDIA = Media([DataPaths(("image_url",)), DataPaths(("file_data",))], {"type": "input_text"})
_RESULT = ResultBlocks(_MEDIA, "input_text")
_DOCUMENTS = documents(TYPED_FILES, _RESULT)
# By type, the shape of the field `output`. That of the local shell is documented as JSON.
_OUTPUTS: dict[str, Shape] = {
    "function_call_output": _RESULT,
    "custom_tool_call_output": _RESULT,
    "apply_patch_call_output": _RESULT,
    "mcp_call": _RESULT,
    "local_shell_call_output": ARGUMENTS,
}
# By type, the field with the arguments that the model wrote, and its shape.
_INPUTS: dict[str, tuple[str, Shape]] = {
    "function_call": ("arguments", ARGUMENTS),
    "mcp_call": ("arguments", ARGUMENTS),
    "custom_tool_call": ("input", PLAIN),
}
# The fields with the arguments of tools that the API itself defines.
_BUILT_IN_INPUTS = ("action", "operation", "code")
# Calls of tools that the API itself runs: no result follows.
_RUN_BY_API = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    "mcp_call",
)
_STREAMS = ("stdout", "stderr")
# The states of an item that is not finished.
_PENDING = ("in_progress", "incomplete", "calling")


class OpenAIResponsesAdapter(MessageAdapter):
    """Items of the OpenAI Responses API, input and output."""

    name = "openai-responses"

    def claims(self, message: Any) -> bool:
        """Return whether it is an item of this API, or a block in it has a type of this format alone."""
        kind, content = get(message, "type"), get(message, "content")
        if get(message, "role") is None:
            return isinstance(kind, str) and (kind in _ITEMS or kind.endswith("_call_output"))
        return isinstance(content, list | tuple) and any(get(b, "type") in _OWN_BLOCKS for b in content)

    def role(self, message: Any, where: str) -> str:
        """Return the role of a message, "assistant" for other items that a model writes, else "tool"."""
        if get(message, "role") is not None:
            return role_of(message, where)
        kind = get(message, "type")
        return "assistant" if kind in ("reasoning", "program") or kind.endswith("_call") else "tool"

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        scan = Scan.of_role(self.role(message, where), calls)
        if get(message, "role") is not None:
            scan.add_blocks(get(message, "content"), ("content",), f"{where}.content", _scan_block)
        elif get(message, "type") == "reasoning":
            for name in ("summary", "content"):
                for index, block in enumerate(block_list(get(message, name))):
                    scan.say_texts(block, (name, index), "text")
        else:
            scan.note_caller(message, "call_id", "id")
            _scan_call(scan, message)
            _scan_output(scan, message, f"{where}.output")
        if get(message, "status") in _PENDING:
            scan.mark_pending()
        return scan.with_rest(message)

    def results(self, message: Any) -> Sequence[Any]:
        """Return the call id of an item that no model writes, which is one result."""
        is_result = get(message, "role") is None and self.role(message, "message") == "tool"
        return [get(message, "call_id")] if is_result else []

    def needs_next(self, message: Any) -> bool:
        """Return whether `message` is reasoning: the API accepts it only before the item that it led to."""
        return bool(get(message, "type") == "reasoning")


def _scan_block(scan: Scan, index: int, path: Path, block: Any, where: str) -> None:
    if scan.add_document(index, path, block, _DOCUMENTS) or scan.add_media(index, path, block, _MEDIA):
        return
    if get(block, "type") in _TEXT_BLOCKS:
        scan.add_text(index, path, text_of(block, where), _MEDIA)


def _id_of(message: Any) -> Any:
    """Return the id of a call, in the call or its output; the API's own tools have another field."""
    call = get(message, "call_id")
    return get(message, "id") if call is None else call


def _scan_call(scan: Scan, message: Any) -> None:
    kind = get(message, "type")
    call = _id_of(message)
    if kind in _INPUTS:
        field, shape = _INPUTS[kind]
        scan.add_call(0, (field,), call, get(message, "name"), get(message, field), shape=shape)
    elif kind == "program" or kind.endswith("_call"):
        written = {field: value for field in _BUILT_IN_INPUTS if (value := get(message, field)) is not None}
        if isinstance(call, str):
            scan.note_call(call, kind.removesuffix("_call"), next(iter(written.values()), None))
            scan.open_calls.append(call or None)
        for field, value in written.items():
            scan.say((field,), value)
    if kind in _RUN_BY_API:
        scan.open_calls.clear()


def _scan_output(scan: Scan, message: Any, where: str) -> None:
    kind, name, output = get(message, "type"), get(message, "name"), get(message, "output")
    call = _id_of(message)
    if kind == "shell_call_output":
        for i, chunk in enumerate(blocks_of(output, where)):
            for j, stream in enumerate(_STREAMS):
                # An empty stream is not a result.
                scan.add_result(
                    2 * i + j, ("output", i, stream), get(chunk, stream) or None, where, call=call, name=name
                )
    elif kind in _OUTPUTS:
        scan.add_result(
            # A call with its own result has its arguments as block 0.
            1 if kind in _INPUTS else None,
            ("output",),
            output,
            where,
            call=call,
            name=name,
            shape=_OUTPUTS[kind],
            is_error=get(message, "status") == "failed" or bool(get(message, "error")),
            documents=_DOCUMENTS,
        )
