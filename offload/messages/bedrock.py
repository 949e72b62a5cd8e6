"""Bedrock Converse: content is blocks that are told by their one key; tools answer in `toolResult`.

https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from offload.errors import MessageError
from offload.messages._access import Path, blocks_of, get, role_of, text_of
from offload.messages._base import TEXT_TYPES, Block, Item, MessageAdapter, Scan, Shape
from offload.messages._content import Content
from offload.messages._json import ARGUMENTS, faithful_json
from offload.messages._media import Media, Place

_OWN_KEYS = frozenset(
    (
        "text",
        "toolUse",
        "toolResult",
        "reasoningContent",
        "citationsContent",
        "guardContent",
        "cachePoint",
        "image",
        "document",
        "video",
        "audio",
        "searchResult",
    )
)
_JSON = "json"


class _ResultContent(Content):
    """Content of a `toolResult`: texts and JSON values leave, and a text block takes their place."""

    def text(self, block: Any, where: str) -> str | None:
        if isinstance(block, Mapping) and _JSON in block:
            return faithful_json(block[_JSON])
        return text_of(block, where) if get(block, "text") is not None else None

    def rest(self, block: Any) -> Any:
        return _JSON if _JSON in block else {}

    def with_text(self, block: Any, text: str) -> Any:  # noqa: ARG002 # a block has one key
        return {"text": text}

    def made(self, rest: Any, text: str, like_block: Any) -> Any:  # noqa: ARG002 # the same
        return {_JSON: json.loads(text)} if rest == _JSON else {"text": text}

    def put_back(self, placed: Any, rest: Any, text: str) -> Any:
        return self.made(rest, text, placed)


_RESULT = _ResultContent()
# A format names no type; its name stands for the subtype.
_MEDIA = Media(
    [
        Place(("image", "source", "bytes"), ("image", "format"), "image/"),
        Place(("document", "source", "bytes"), ("document", "format"), "application/"),
    ],
    {},
)


class BedrockAdapter(MessageAdapter):
    """Messages of the Bedrock Converse API, and of the frameworks that took its format over."""

    name = "bedrock"

    def claims(self, message: Any) -> bool:
        """Tell whether a block has a key of this format and no type, which all others have."""
        content = get(message, "content")
        return isinstance(content, list) and any(
            isinstance(block, Mapping) and "type" not in block and not _OWN_KEYS.isdisjoint(block)
            for block in content
        )

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds."""
        scan = Scan()
        item_type = TEXT_TYPES.get(role_of(message, where), "user_message")
        for i, block in enumerate(blocks_of(get(message, "content"), f"{where}.content")):
            place = f"{where}.content[{i}]"
            use, result = get(block, "toolUse"), get(block, "toolResult")
            if result is not None:
                _scan_result(scan, result, i, f"{place}.toolResult", tool_names)
            elif use is not None:
                arguments = get(use, "input")
                scan.add_call(
                    i, get(use, "toolUseId"), get(use, "name"), ARGUMENTS.read(arguments), arguments
                )
            elif item_type == "user_message" and scan.add_media(i, item_type, _MEDIA.read(block)):
                continue
            elif get(block, "text") is not None:
                scan.items.append(Item(i, item_type, text_of(block, place)))
            else:
                scan.texts.extend(_fixed_texts(block))
        return scan

    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""
        if isinstance(block, tuple):
            return ("content", block[0], "toolResult", "content", block[1]), _MEDIA
        index = cast("int", block)  # no content of this format is one value
        found = get(message, "content")[index]
        if get(found, "toolResult") is not None:
            return ("content", index, "toolResult", "content"), _RESULT
        if get(found, "toolUse") is not None:
            return ("content", index, "toolUse", "input"), ARGUMENTS
        return ("content", index), _MEDIA


def _scan_result(scan: Scan, result: Any, index: int, where: str, tool_names: Mapping[str, str]) -> None:
    call = get(result, "toolUseId")
    if not isinstance(call, str):
        raise MessageError(f'{where}: a toolResult needs a string "toolUseId", got {call!r:.40}')
    content = get(result, "content")
    found = _RESULT.read(content, f"{where}.content")
    is_error = get(result, "status") == "error"
    scan.add_result(index, call, tool_names.get(call), found, is_error=is_error)
    scan.add_result_media(content, _MEDIA, call, tool_names.get(call), index)


def _fixed_texts(block: Any) -> list[str]:
    """Return the texts of a block that never leave: reasoning, and answers with citations."""
    reasoning = get(get(block, "reasoningContent"), "reasoningText")
    cited = get(get(block, "citationsContent"), "content")
    holders = [reasoning, *(cited if isinstance(cited, list) else ())]
    return [text for holder in holders if isinstance(text := get(holder, "text"), str)]
