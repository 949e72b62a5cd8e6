"""LangChain messages: objects of langchain-core, told by their `type`, and the dicts made of them.

A dict is the object's fields (`model_dump`), or those in an envelope: `data` (`messages_to_dict`) or
`kwargs` (`dumpd`). https://docs.langchain.com/oss/python/langchain/messages
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from offload.messages._access import (
    Path,
    blocks_of,
    count_blocks,
    get,
    is_by_code,
    role_of,
    string_or_none,
)
from offload.messages._base import TEXT_TYPES, Block, Item, MessageAdapter, Scan, Shape
from offload.messages._content import Content
from offload.messages._json import ARGUMENTS, PLAIN
from offload.messages._media import Media, Place
from offload.record import encodable

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "chat": "chat",
    "remove": "remove",
}


class _ResultContent(Content):
    """Content of a ToolMessage: a block may be a bare string, or of a provider that tells it otherwise."""

    def text(self, block: Any, where: str) -> str | None:  # noqa: ARG002 # no block is malformed
        if isinstance(block, str):
            return block
        return string_or_none(get(block, "text")) if get(block, "type") == "text" else None

    def rest(self, block: Any) -> Any:
        return None if isinstance(block, str) else super().rest(block)

    def with_text(self, block: Any, text: str) -> Any:
        return text if isinstance(block, str) else super().with_text(block, text)

    def made(self, rest: Any, text: str, like_block: Any) -> Any:
        return text if rest is None else super().made(rest, text, like_block)


_CONTENT = _ResultContent()
# Blocks of LangChain itself, old and new, and of the providers that it hands on.
_MEDIA = Media(
    [
        Place(("base64",), ("mime_type",)),
        Place(("data",), ("mime_type",)),
        Place(("image_url", "url")),
        Place(("image_url",)),
        Place(("file", "file_data")),
        Place(("source", "data"), ("source", "media_type")),
    ],
    {"type": "text"},
)


class LangChainAdapter(MessageAdapter):
    """Messages of LangChain and LangGraph."""

    name = "langchain"

    def claims(self, message: Any) -> bool:
        """Tell whether the type is that of a LangChain message; but for `chat` none of them has a role."""
        _, fields = _opened(message)
        kind = _kind(fields)
        return kind in _ROLES and (kind == "chat" or get(fields, "role") is None)

    def role(self, message: Any, where: str) -> str:
        """Return the role that the type of `message` stands for."""
        _, fields = _opened(message)
        kind = _kind(fields)
        return role_of(fields, where) if kind == "chat" else _ROLES[kind]

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds."""
        _, fields = _opened(message)
        role, scan = self.role(message, where), Scan()
        content = get(fields, "content")
        if role in ("tool", "function"):
            _scan_result(scan, fields, where, tool_names)
        elif isinstance(content, str):
            scan.items.append(Item(None, TEXT_TYPES.get(role, "user_message"), content))
        elif content is not None:
            for i, block in enumerate(blocks_of(content, f"{where}.content")):
                _scan_block(scan, block, i, TEXT_TYPES.get(role, "user_message"))
        calls = get(fields, "tool_calls")
        first = count_blocks(content)
        for i, call in enumerate(blocks_of([] if calls is None else calls, f"{where}.tool_calls"), first):
            arguments = get(call, "args")
            scan.add_call(i, get(call, "id"), get(call, "name"), ARGUMENTS.read(arguments), arguments)
        _note_callers(scan, fields)
        return scan

    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""
        envelope, fields = _opened(message)
        if block is None:
            return (*envelope, "content"), _CONTENT
        content = get(fields, "content")
        index = cast("int", block) - count_blocks(content)
        if index >= 0:
            return (*envelope, "tool_calls", index, "args"), ARGUMENTS
        at = cast("int", block)  # a result is a message of its own
        return (*envelope, "content", at), PLAIN if isinstance(content[at], str) else _MEDIA


def _opened(message: Any) -> tuple[Path, Any]:
    """Return where in `message` its fields are, and them."""
    if isinstance(message, Mapping):
        for envelope in ("data", "kwargs"):
            if isinstance(message.get(envelope), Mapping) and isinstance(message.get("type"), str):
                return (envelope,), message[envelope]
    return (), message


def _kind(fields: Any) -> str:
    """Return the type of a message; that of a streamed chunk is the name of its class."""
    kind = get(fields, "type")
    return kind.removesuffix("MessageChunk").lower() if isinstance(kind, str) else ""


def _scan_block(scan: Scan, block: Any, index: int, item_type: str) -> None:
    if item_type == "user_message" and scan.add_media(index, item_type, _MEDIA.read(block)):
        return
    text = _CONTENT.text(block, "")
    if text is not None:
        scan.items.append(Item(index, item_type, text))
        return
    for field in ("thinking", "reasoning"):
        if get(block, "type") == field and isinstance(get(block, field), str):
            scan.texts.append(get(block, field))


def _note_callers(scan: Scan, fields: Any) -> None:
    """Note the calls by code: a block of the provider says who calls, or what was kept of it beside."""
    beside = get(fields, "additional_kwargs")
    for holder, name in ((fields, "content"), (fields, "tool_calls"), (beside, "tool_calls")):
        calls = get(holder, name)
        for call in calls if isinstance(calls, list | tuple) else ():
            scan.note_caller(call, "id", "call_id")
    if is_by_code(beside) or is_by_code(fields):
        call = get(fields, "tool_call_id")
        scan.code_calls |= {encodable(call)} if isinstance(call, str) else scan.calls.keys()


def _scan_result(scan: Scan, fields: Any, where: str, tool_names: Mapping[str, str]) -> None:
    call, name = get(fields, "tool_call_id"), get(fields, "name")
    if isinstance(call, str):
        name = tool_names.get(call, name)
    content = get(fields, "content")
    found = _CONTENT.read(content, f"{where}.content")
    scan.add_result(None, call, name, found, is_error=get(fields, "status") == "error")
    scan.add_result_media(content, _MEDIA, call, name)
