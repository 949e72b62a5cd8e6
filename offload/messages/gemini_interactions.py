"""Gemini's Interactions API: a flat list of steps that name their type; a function result is a step.

https://ai.google.dev/gemini-api/docs/interactions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offload.messages._documents import DocumentKind, TextFile
from offload.messages._results import ResultBlocks
from offload.messages._shapes import JsonObject, Shape
from offload.messages.access import Path, block_list, get, text_of
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.calls import Calls
from offload.messages.media import DataPaths, Media

# The roles of the steps that are not the model's.
_ROLES = {"user_input": "user", "function_result": "tool"}
_STEPS = frozenset(
    {"thought", "model_output", *_ROLES}
    | {f"{tool}_call" for tool in ("google_maps", "google_search", "processing", "retrieval", "url_context")}
    | {f"{tool}_result" for tool in ("google_maps", "google_search", "processing", "retrieval")}
    | {f"{tool}_result" for tool in ("file_search", "tool_search", "url_context", "code_execution")}
    | {"code_execution_call", "mcp_server_tool_call", "mcp_server_tool_result"}
)
# Items of OpenAI's Responses API have these types too, and one of these fields.
_SHARED = frozenset({"file_search_call", "tool_search_call"})
_OF_OPENAI = ("call_id", "status", "queries")
_DATA = (DataPaths(("data",), ("mime_type",)),)
_MEDIA = Media(_DATA, {"type": "text"})
_DOCUMENTS = (DocumentKind((), TextFile(_DATA)),)
# A result is a text, a list of blocks or an object.
_BLOCKS, _OBJECT = ResultBlocks(_MEDIA), JsonObject("result")


class GeminiInteractionsAdapter(MessageAdapter):
    """Steps of the Interactions API, input and output."""

    name = "gemini-interactions"

    def claims(self, message: Any) -> bool:
        """Return whether it is a step: it has a type of this API, and no role."""
        kind = get(message, "type")
        if not isinstance(kind, str) or get(message, "role") is not None:
            return False
        if kind == "function_call":
            return get(message, "call_id") is None and isinstance(get(message, "arguments"), Mapping)
        if kind in _SHARED:
            is_step = get(message, "id") is not None
            return is_step and all(get(message, name) is None for name in _OF_OPENAI)
        return kind in _STEPS

    def role(self, message: Any, _where: str) -> str:
        return _ROLES.get(get(message, "type"), "assistant")

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        kind = get(message, "type")
        scan = Scan.of_role(self.role(message, where), calls)
        if kind in ("user_input", "model_output"):
            if get(message, "content") is not None:
                scan.add_blocks(get(message, "content"), ("content",), f"{where}.content", _scan_block)
        elif kind == "thought":
            for index, block in enumerate(block_list(get(message, "summary"))):
                scan.say_texts(block, ("summary", index), "text")
        elif kind in ("function_result", "mcp_server_tool_result"):
            _scan_result(scan, message, where)
        else:
            _scan_call(scan, message)
        return scan.with_rest(message)

    def results(self, message: Any) -> Sequence[Any]:
        return [get(message, "call_id")] if get(message, "type") == "function_result" else []

    def user_message(self, text: str) -> Any:
        return {"type": "user_input", "content": [{"type": "text", "text": text}]}


def _scan_block(scan: Scan, index: int, path: Path, block: Any, where: str) -> None:
    if scan.add_document(index, path, block, _DOCUMENTS) or scan.add_media(index, path, block, _MEDIA):
        return
    if get(block, "type") == "text":
        scan.add_text(index, path, text_of(block, where), _MEDIA)


def _scan_call(scan: Scan, message: Any) -> None:
    """Add a call: that of a function, whose result the host sends, or of a tool that the API runs."""
    call, name, arguments = (get(message, field) for field in ("id", "name", "arguments"))
    if get(message, "type") == "function_call":
        scan.add_call(0, ("arguments",), call, name, arguments)
    elif arguments is not None:
        scan.note_call(call, name, arguments)
        scan.say(("arguments",), arguments)


def _scan_result(scan: Scan, message: Any, where: str) -> None:
    result = get(message, "result")
    # An object of the SDK is counted.
    is_object = isinstance(result, Mapping) or not isinstance(result, str | list | tuple)
    shape: Shape = _OBJECT if is_object else _BLOCKS
    scan.add_result(
        None,
        ("result",),
        result,
        f"{where}.result",
        call=get(message, "call_id"),
        name=get(message, "name"),
        shape=shape,
        is_error=get(message, "is_error") is True,
        documents=_DOCUMENTS,
    )
