"""Anthropic Messages: content is a string or blocks; a tool result is a block of a user message.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.errors import MessageError
from offload.messages._documents import TYPED_FILES, documents
from offload.messages._results import ResultBlocks
from offload.messages.access import Path, block_list, get, role_of, string_field, text_of, type_of
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.calls import Calls
from offload.messages.media import TYPED

OWN_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
_RESULT = ResultBlocks(TYPED)
_DOCUMENTS = documents(TYPED_FILES, _RESULT)


class AnthropicAdapter(MessageAdapter):
    """Messages of the Anthropic API, and plain messages of a role and a text of any API."""

    name = "anthropic"

    def claims(self, message: Any) -> bool:
        """Return whether a block has a type that only this format has."""
        content = get(message, "content")
        return isinstance(content, list) and any(get(b, "type") in OWN_BLOCKS for b in content)

    def role(self, message: Any, where: str) -> str:
        """Return the role of a message. Raises `MessageError` without one: no format claims it."""
        # Most messages are such dicts.
        if isinstance(message, dict) and isinstance(role := message.get("role"), str):
            return role
        if get(message, "role") is None and isinstance(kind := get(message, "type"), str):
            raise MessageError(f"{where}: no known format has a message of the type {kind!r:.60}")
        return role_of(message, where)

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        scan = Scan.of_role(self.role(message, where), calls)
        scan.add_blocks(get(message, "content"), ("content",), f"{where}.content", _scan_block)
        return scan.with_rest(message)

    def results(self, message: Any) -> Sequence[Any]:
        return result_ids(get(message, "content"))


def result_ids(content: Any) -> list[Any]:
    """Return the call ids of the tool results in a content whose calls are in earlier messages.

    A tool that the API runs is called and answered in one message, unless the turn was paused.
    """
    blocks = block_list(content)
    own = {call for block in blocks if isinstance(call := get(block, "id"), str)}
    results = (block for block in blocks if str(get(block, "type")).endswith("tool_result"))
    calls = (get(block, "tool_use_id") for block in results)
    return [call for call in calls if not (isinstance(call, str) and call in own)]


def _scan_block(scan: Scan, index: int, path: Path, block: Any, where: str) -> None:
    kind = type_of(block, where)
    scan.note_caller(block, "id", "tool_use_id")
    # A block of a type of the API alone has files in its content only.
    may_be_file = kind not in OWN_BLOCKS
    if may_be_file and (
        scan.add_document(index, path, block, _DOCUMENTS) or scan.add_media(index, path, block, TYPED)
    ):
        return
    if kind == "text":
        scan.add_text(index, path, text_of(block, where), TYPED)
    elif kind == "tool_result":
        scan.add_result(
            index,
            (*path, "content"),
            get(block, "content"),
            f"{where}.content",
            call=string_field(block, "tool_use_id", where, "a tool_result block"),
            shape=_RESULT,
            is_error=get(block, "is_error") is True,
            documents=_DOCUMENTS,
        )
    elif kind == "tool_use":
        scan.add_call(index, (*path, "input"), get(block, "id"), get(block, "name"), get(block, "input"))
    elif kind == "thinking":
        scan.say_texts(block, path, "thinking")
