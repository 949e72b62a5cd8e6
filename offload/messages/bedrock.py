"""Bedrock Converse: content is blocks with one key each; a tool result is a block `toolResult`.

https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from offload.messages._documents import DocumentKind, TextFile
from offload.messages._results import ResultBlocks
from offload.messages._shapes import PLAIN, faithful_json
from offload.messages.access import Path, at, block_list, get, role_of, string_field, text_of
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.calls import Calls
from offload.messages.media import DataPaths, Media

_OWN_KEYS = {
    *("text", "reasoningContent", "citationsContent", "guardContent", "searchResult", "cachePoint"),
    *("toolUse", "toolResult", "toolAddition", "toolRemoval"),
    *("image", "document", "video", "audio"),
}
_JSON = "json"
# The field of a framework's own part in the block made of it.
PART = "part"


class _BedrockResultBlocks(ResultBlocks):
    """The content of a `toolResult`: texts and JSON values; a text block replaces either."""

    def text(self, block: Any, where: str) -> str | None:
        if isinstance(block, Mapping) and _JSON in block:
            return faithful_json(block[_JSON])
        return text_of(block, where) if get(block, "text") is not None else None

    def text_field(self, block: Any) -> Path:
        return (_JSON if _JSON in block else "text",)

    def rest(self, block: Any, *, is_ordered: bool = False) -> Any:  # noqa: ARG002 # a block has one key
        return _JSON if _JSON in block else {}

    def with_text(self, block: Any, text: str) -> Any:  # noqa: ARG002 # a block has one key
        return {"text": text}

    def build(self, rest: Any, text: str, like_block: Any) -> Any:  # noqa: ARG002 # a block has one key
        return {_JSON: json.loads(text)} if rest == _JSON else {"text": text}


# The field `format` holds the subtype alone.
_MEDIA = Media(
    [
        DataPaths(("image", "source", "bytes"), ("image", "format"), "image/"),
        DataPaths(("document", "source", "bytes"), ("document", "format"), "application/"),
    ],
    {},
)
_RESULT = _BedrockResultBlocks(_MEDIA)
_DOCUMENTS = (
    DocumentKind(("searchResult", "content"), _RESULT),
    DocumentKind(("document", "source", "text"), PLAIN),
    DocumentKind(("document", "source", "content"), _RESULT),
    DocumentKind(("guardContent", "text", "text"), PLAIN),
    DocumentKind(
        (), TextFile([DataPaths(("document", "source", "bytes"), ("document", "format"), "format/")])
    ),
)


class BedrockAdapter(MessageAdapter):
    """Messages of the Bedrock Converse API, and of frameworks that use its format."""

    name = "bedrock"

    def claims(self, message: Any) -> bool:
        """Return whether a block has a key of this format and no type, which all other formats have."""
        content = get(message, "content")
        return isinstance(content, list) and any(
            isinstance(block, Mapping) and "type" not in block and not _OWN_KEYS.isdisjoint(block)
            for block in content
        )

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        scan = Scan.of_role(role_of(message, where), calls)
        scan.add_blocks(get(message, "content"), ("content",), f"{where}.content", _scan_block)
        return scan.with_rest(message)

    def results(self, message: Any) -> Sequence[Any]:
        results = (get(block, "toolResult") for block in block_list(get(message, "content")))
        return [get(result, "toolUseId") for result in results if result is not None]

    def user_message(self, text: str) -> Any:
        return {"role": "user", "content": [{"text": text}]}

    def must_join(self, message: Any, other: Any) -> bool:
        return all(_is_plain_user(each) for each in (message, other))

    def join(self, messages: Sequence[Any]) -> Any:
        return {"role": "user", "content": [block for each in messages for block in each["content"]]}

    def split(self, message: Any, block: Any) -> list[Any]:
        if not _is_plain_user(message) or not isinstance(block, int):
            return [message]
        content = message["content"]
        parts = content[:block], content[block : block + 1], content[block + 1 :]
        return [{**message, "content": part} for part in parts if part]


def _is_plain_user(message: Any) -> bool:
    """Return whether a message is a user's blocks alone, so that `split` can undo `join`."""
    is_plain = isinstance(message, dict) and message.keys() == {"role", "content"}
    return is_plain and message["role"] == "user" and isinstance(message["content"], list)


def fixed_block(text: str = "", signature: str | None = None) -> dict[str, Any]:
    """Return a block that is counted but never offloaded; with a signature, it is signed thinking."""
    signed = {} if signature is None else {"signature": signature}
    return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}


def signed_blocks(text: str, signatures: Sequence[str], part: Any) -> list[dict[str, Any]]:
    """Return the blocks of a part with signed thinking, one for each signature.

    Nothing before them may change, and they leave together. The first has the whole part, as JSON values.
    """
    texts = [text, *("" for _ in signatures[1:])]
    blocks = [fixed_block(each, signature) for each, signature in zip(texts, signatures, strict=True)]
    blocks[0][PART] = part
    return blocks


def call_block(call: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """Return the block of a tool call."""
    return {"toolUse": {"toolUseId": call, "name": name, "input": arguments}}


def result_block(call: Any, content: list[dict[str, Any]], *, is_error: bool = False) -> dict[str, Any]:
    """Return the block of a tool result."""
    status = "error" if is_error else "success"
    return {"toolResult": {"toolUseId": call, "content": content, "status": status}}


def _scan_block(scan: Scan, index: int, path: Path, block: Any, where: str) -> None:
    use, result = get(block, "toolUse"), get(block, "toolResult")
    if result is not None:
        scan.add_result(
            index,
            (*path, "toolResult", "content"),
            get(result, "content"),
            f"{where}.toolResult.content",
            call=string_field(result, "toolUseId", f"{where}.toolResult", "a toolResult"),
            shape=_RESULT,
            is_error=get(result, "status") == "error",
            documents=_DOCUMENTS,
        )
    elif use is not None:
        call, name = get(use, "toolUseId"), get(use, "name")
        scan.add_call(index, (*path, "toolUse", "input"), call, name, get(use, "input"))
    elif scan.add_document(index, path, block, _DOCUMENTS) or scan.add_media(index, path, block, _MEDIA):
        return
    elif get(block, "text") is not None:
        scan.add_text(index, path, text_of(block, where), _MEDIA)
    else:
        # Reasoning, and answers with citations.
        place = ("reasoningContent", "reasoningText")
        scan.say_texts(at(block, place), (*path, *place), "text")
        place = ("citationsContent", "content")
        for i, cited in enumerate(block_list(at(block, place))):
            scan.say_texts(cited, (*path, *place, i), "text")
        scan.leave_out((*path, PART))
