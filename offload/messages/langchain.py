"""LangChain messages: objects of langchain-core, which name their `type`, and the dicts made of them.

A dict has the object's fields (`model_dump`), or holds them under `data` (`messages_to_dict`) or `kwargs`
(`dumpd`). https://docs.langchain.com/oss/python/langchain/messages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offload.base.text import escape_surrogates
from offload.messages._documents import DocumentKind, documents
from offload.messages._results import ResultBlocks
from offload.messages._shapes import PLAIN
from offload.messages.access import Path, block_list, get, is_by_code, role_of, string_or_none
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.anthropic import result_ids
from offload.messages.calls import Calls
from offload.messages.media import DataPaths, Media

_RESULT_ROLES = ("tool", "function")
_TYPES = ("human", "ai", "system", "tool", "function", "chat", "remove")
_ROLES = {"human": "user", "ai": "assistant"}


class _LangChainResultBlocks(ResultBlocks):
    """The content of a ToolMessage: a block may be a string, or a provider's own."""

    def text(self, block: Any, where: str) -> str | None:  # noqa: ARG002 # no block is malformed
        if isinstance(block, str):
            return block
        return string_or_none(get(block, "text")) if get(block, "type") == "text" else None


# Blocks of LangChain itself, old and new, and of providers.
_FILES = (
    DataPaths(("base64",), ("mime_type",)),
    DataPaths(("data",), ("mime_type",)),
    DataPaths(("file", "file_data")),
    DataPaths(("source", "data"), ("source", "media_type")),
)
_MEDIA = Media([*_FILES, DataPaths(("image_url", "url")), DataPaths(("image_url",))], {"type": "text"})
_RESULT = _LangChainResultBlocks(_MEDIA)
_DOCUMENTS = (
    *documents([*_FILES, DataPaths(("file_data",))], _RESULT),
    DocumentKind(("text",), PLAIN, (("type",), "text-plain")),
)
# Fields that are not sent to a model; the last are in `tool_calls` too.
_NOT_SENT = (
    *("artifact", "response_metadata", "usage_metadata", "tool_call_chunks"),
    *("additional_kwargs.tool_calls", "additional_kwargs.function_call"),
)
# The calls among the blocks of a content that are in `tool_calls` too, and their arguments.
_CALL_BLOCKS = ("tool_use", "tool_call", "function_call", "custom_tool_call", "tool_call_chunk")
_ARGUMENTS = ("input", "args", "arguments", "partial_json")


class LangChainAdapter(MessageAdapter):
    """Messages of LangChain and LangGraph."""

    name = "langchain"

    def claims(self, message: Any) -> bool:
        """Return whether the type is that of a LangChain message; of these, only `chat` has a role."""
        _, fields = _opened(message)
        kind = _kind(fields)
        return kind in _TYPES and (kind == "chat" or get(fields, "role") is None)

    def role(self, message: Any, where: str) -> str:
        _, fields = _opened(message)
        kind = _kind(fields)
        return role_of(fields, where) if kind == "chat" else _ROLES.get(kind, kind)

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        envelope, fields = _opened(message)
        role, content, path = self.role(message, where), get(fields, "content"), (*envelope, "content")
        scan = Scan.of_role(role, calls)
        if role in _RESULT_ROLES:
            scan.add_result(
                None,
                path,
                content,
                f"{where}.content",
                call=get(fields, "tool_call_id"),
                name=get(fields, "name"),
                shape=_RESULT,
                is_error=get(fields, "status") == "error",
                documents=_DOCUMENTS,
            )
        elif content is not None:
            scan.add_blocks(content, path, f"{where}.content", _scan_block)
        made, first = get(fields, "tool_calls"), len(block_list(content))
        if made is not None:
            scan.add_blocks(made, (*envelope, "tool_calls"), f"{where}.tool_calls", _scan_call, first=first)
        _note_callers(scan, fields)
        _leave_out(scan, fields, envelope)
        return scan.with_rest(message, envelope)

    def results(self, message: Any) -> Sequence[Any]:
        """Return the call id of a ToolMessage, and of the results of a provider's own tools."""
        _, fields = _opened(message)
        own = [get(fields, "tool_call_id")] if _kind(fields) in _RESULT_ROLES else []
        return [*own, *result_ids(get(fields, "content"))]


def _opened(message: Any) -> tuple[Path, Any]:
    """Return the path to the fields of `message`, and the fields."""
    if isinstance(message, Mapping):
        for envelope in ("data", "kwargs"):
            if isinstance(message.get(envelope), Mapping) and isinstance(message.get("type"), str):
                return (envelope,), message[envelope]
    return (), message


def _kind(fields: Any) -> str:
    """Return the type of a message; that of a streamed chunk is the name of its class."""
    kind = get(fields, "type")
    return kind.removesuffix("MessageChunk").lower() if isinstance(kind, str) else ""


def _scan_call(scan: Scan, index: int, path: Path, call: Any, _where: str) -> None:
    scan.add_call(index, (*path, "args"), get(call, "id"), get(call, "name"), get(call, "args"))


def _scan_block(scan: Scan, index: int, path: Path, block: Any, where: str) -> None:
    if scan.add_document(index, path, block, _DOCUMENTS) or scan.add_media(index, path, block, _MEDIA):
        return
    text = _RESULT.text(block, where)
    if text is not None:
        scan.add_text(index, path, text, PLAIN if isinstance(block, str) else _MEDIA)
    elif get(block, "type") in ("thinking", "reasoning"):
        scan.say_texts(block, path, get(block, "type"))


def _leave_out(scan: Scan, fields: Any, envelope: Path) -> None:
    """Leave out what no model reads, and calls that come twice."""
    for name in _NOT_SENT:
        is_call = "." in name
        if not is_call or scan.calls:
            scan.leave_out((*envelope, *name.split(".")))
    made = {call_id for call_id, _ in scan.calls}
    for index, block in enumerate(block_list(get(fields, "content"))):
        if get(block, "type") in _CALL_BLOCKS and {get(block, "id"), get(block, "call_id")} & made:
            for name in _ARGUMENTS:
                scan.leave_out((*envelope, "content", index, name))


def _note_callers(scan: Scan, fields: Any) -> None:
    """Note the calls by code: the caller is in a block of the provider or in the additional fields."""
    more = get(fields, "additional_kwargs")
    for holder, name in ((fields, "content"), (fields, "tool_calls"), (more, "tool_calls")):
        for call in block_list(get(holder, name)):
            scan.note_caller(call, "id", "call_id")
    if is_by_code(more) or is_by_code(fields):
        call = get(fields, "tool_call_id")
        made = {escape_surrogates(each) for each, _ in scan.calls if each}
        scan.code_calls |= {escape_surrogates(call)} if isinstance(call, str) else made
