"""Signed thinking in messages: the blocks that newest Claude models bind to all that was sent before them.

A block is signed if it has a signature, or data in place of thinking that is not shown. Where each
format and framework keeps it was read in their releases of 2026-11; what binds it is at
https://platform.claude.com/docs/en/build-with-claude/preserved-thinking.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from offload.base.patterns import lazy_pattern
from offload.base.threads.locks import NO_FORK
from offload.messages.access import Path, at, block_list, edit_at, get, sequence_like
from offload.messages.marks import is_mark, is_mark_block, without_marks
from offload.messages.stored import to_json

# The fields that may hold a list of blocks: of the APIs, LangChain's envelopes, LiteLLM, OpenRouter, agno and
# the OpenAI Agents SDK.
_PLACES: tuple[Path, ...] = (
    ("content",),
    ("parts",),
    ("data", "content"),
    ("kwargs", "content"),
    ("thinking_blocks",),
    ("reasoning_details",),
    ("provider_data", "content_blocks"),
    ("provider_data", "thinking_blocks"),
)
# No signature is shorter, and none has other characters than base64 or its form for URLs.
_LEAST_CHARS = 16
_BLACKED_OUT = lazy_pattern(r"(?i)redacted|[^A-Za-z0-9+/=_-]")
# The fields of a block that are the same in many of them.
_NOT_OWN = frozenset({"type", "format", "index", "thought"})
# An API accepts no message without content.
_EMPTIED = "(empty)"


class Thinking(NamedTuple):
    """A signed block of thinking in a message: where it is, and the digest by which it is known."""

    path: Path
    key: str


class Removed(NamedTuple):
    """A block that was removed from a message, and its path there; at index -1, the text in place of all."""

    path: Path
    block: Any


def signed_thinking(message: Any) -> list[Thinking]:
    """Return the signed blocks of thinking in a message of the model, in order."""
    found = []
    for place in _PLACES:
        if isinstance(message, dict) and place[0] not in message:
            continue
        for index, block in enumerate(block_list(at(message, place))):
            signature = signature_of(block)
            key = _key_of(block, signature) if signature else None
            if key is not None:
                found.append(Thinking((*place, index), key))
    return found


def _key_of(block: Any, signature: Any) -> str | None:
    """Return the digest by which a block is known: that of its signature, which no other block has.

    A log that blacks signatures out writes one text for all; then it is that of the block. None if such a
    block has no other text: it is the same as others, and no provider reads it.
    """
    text = "" if isinstance(signature, bytes) else str(signature)
    is_blacked_out = _BLACKED_OUT.search(text) is not None
    if isinstance(signature, bytes) or (len(text) >= _LEAST_CHARS and not is_blacked_out):
        return thinking_key(signature)
    fields = to_json(block)
    if is_blacked_out and not _has_text(fields, signature):
        return None
    return thinking_key(json.dumps(fields, sort_keys=True))


def _has_text(value: Any, signature: Any) -> bool:
    """Return whether a block of thinking holds more than its signature."""
    if isinstance(value, dict):
        own = ((name, part) for name, part in value.items() if name not in _NOT_OWN)
        return any(_has_text(part, signature) for name, part in own if not is_mark(name, part))
    if isinstance(value, list):
        return any(_has_text(part, signature) for part in value)
    return bool(value) and value != signature


def thinking_key(signature: Any) -> str:
    """Return the digest by which a signature is known."""
    data = signature if isinstance(signature, bytes) else str(signature).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16).hexdigest()


def without_thinking(message: Any, thinking: Sequence[Thinking]) -> tuple[Any, list[Removed]]:
    """Return a copy of `message` without some of its blocks, and these; a text replaces the last one."""
    removed = [Removed(one.path, at(message, one.path)) for one in thinking]
    for place in dict.fromkeys(one.path[:-1] for one in removed):
        taken = {one.path[-1] for one in removed if one.path[:-1] == place}
        blocks = block_list(at(message, place))
        kept = [block for index, block in enumerate(blocks) if index not in taken]
        if not kept and place[-1] in ("content", "parts"):
            kept = [_block_for(at(message, place[:-1]), str(place[-1]), _text_like(blocks[0]))]
            removed.append(Removed((*place, -1), None))
        message = _with_blocks(message, place, kept)
    return message, removed


def bare_of(message: Any, keys: Collection[str] | None = None) -> Any:
    """Return `message` without its signed blocks, or those of `keys`; itself if it has none of them."""
    gone = [one for one in signed_thinking(message) if keys is None or one.key in keys]
    return without_thinking(message, gone)[0] if gone else message


def with_thinking(message: Any, removed: Iterable[Removed]) -> Any:
    """Return a copy of `message` with the blocks that `without_thinking` removed, its inverse."""
    places: dict[Path, list[Removed]] = {}
    for one in removed:
        places.setdefault(one.path[:-1], []).append(one)
    for place, some in places.items():
        is_empty = any(one.path[-1] == -1 for one in some)
        blocks = [] if is_empty else [*block_list(at(message, place))]
        holder = at(message, place[:-1])
        for one in some:
            if one.path[-1] != -1:
                blocks.insert(int(one.path[-1]), _block_for(holder, str(place[-1]), one.block))
        message = _with_blocks(message, place, blocks)
    return message


def with_thinking_of(message: Any, other: Any) -> Any:
    """Return `message` with the signed blocks that it lacks of `other`; itself if it lacks none."""
    there = {one.key for one in signed_thinking(message)}
    lacking = [one for one in signed_thinking(other) if one.key not in there]
    return with_thinking(message, without_thinking(other, lacking)[1]) if lacking else message


def content_digest(message: Any) -> str:
    """Return a digest of what the model reads in a message but its signed thinking.

    It is the same for an SDK object and its data, for other marks of the cache, and for a content that is a
    text or one block of text: clients change its form to mark it. Raises `MessageError` for a message that
    has no JSON.
    """
    text = json.dumps(_bare(to_json(bare_of(message))), sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def signature_of(block: Any) -> Any:
    """Return the signature of a block of thinking, or its data if it is not shown; None for other blocks."""
    kind = get(block, "type")
    read = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if read is not None:
        return read(block)
    reasoning = get(block, "reasoningContent")
    if reasoning is not None:
        return get(get(reasoning, "reasoningText"), "signature") or get(reasoning, "redactedContent")
    if get(block, "thought") is True:
        return get(block, "thought_signature") or get(block, "thoughtSignature")
    return None


def _of_encrypted(block: Any) -> Any:
    """Return the data of a block of OpenRouter; other providers than Anthropic bind nothing."""
    return get(block, "data") if str(get(block, "format")).startswith("anthropic") else None


def _of_reasoning(block: Any) -> Any:
    extras = get(block, "extras")
    return get(extras, "signature") or get(extras, "redacted_content")


def _of_reasoning_content(block: Any) -> Any:
    content = get(block, "reasoning_content")
    return get(content, "signature") or get(content, "redacted_content") or get(block, "redacted_content")


_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "thinking": lambda block: get(block, "signature"),
    "redacted_thinking": lambda block: get(block, "data"),
    "reasoning": _of_reasoning,
    "reasoning_content": _of_reasoning_content,
    "reasoning.text": lambda block: get(block, "signature"),
    "reasoning.encrypted": _of_encrypted,
    "non_standard": lambda block: signature_of(get(block, "value")),
}


def _with_blocks(message: Any, place: Path, blocks: list[Any]) -> Any:
    return edit_at(message, place, lambda value: sequence_like(value, blocks))


def _block_for(holder: Any, name: str, block: Any) -> Any:
    """Return a block of a record as an object, if the field `name` of its holder has objects."""
    field = getattr(type(holder), "model_fields", {}).get(name)
    if field is None or not isinstance(block, dict):
        return block
    with NO_FORK:
        from pydantic import TypeAdapter  # noqa: PLC0415 # loaded only when used

    [built] = TypeAdapter(field.annotation).validate_json(json.dumps([block]))
    return built


def _text_like(block: Any) -> Any:
    """Return a text in the form of a block's format."""
    return {"text": _EMPTIED} if get(block, "type") is None else {"type": "text", "text": _EMPTIED}


def _bare(value: Any) -> Any:
    """Return a JSON value without fields that are None or marks of the cache, and with contents as blocks."""
    if isinstance(value, dict):
        bare = {k: _bare(v) for k, v in without_marks(value).items() if v is not None}
        if isinstance(bare.get("content"), str) and ("role" in bare or bare.get("type") == "tool_result"):
            bare["content"] = [{"type": "text", "text": bare["content"]}]
        return bare
    return [_bare(part) for part in value if not is_mark_block(part)] if isinstance(value, list) else value
