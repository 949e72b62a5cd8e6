"""Signed thinking at an API of messages: it is bound to all that was sent before it, or required with a call.

By https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (2026-11), the API refuses a
request whose thinking stands behind other content than it was made with: the system prompt, the set of tools
and all messages before it, but not thinking and cache marks. Each block also records the one before it, so
that blocks may be missing at the beginning or the end of a conversation, not between others. The blocks of
the latest reply come back all or not at all.

Others bind nothing, and refuse a tool call without thinking, as
https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

Json = dict[str, Any]

HEADER = "thinking-binding-controls-2026-08-01"
_MODELS = re.compile(r"claude-(?:(?:fable|mythos)-5-[12]|(?:opus|sonnet|haiku)-5-5)")
_REQUIRING = re.compile(r"(?:kimi|deepseek|minimax|glm)-.*")
_MISSING = "thinking is enabled but reasoning_content is missing in assistant tool call message at index {}"
_SIGNED = {"thinking": "signature", "redacted_thinking": "data"}
_INVALID = "messages.{}.content.{}: Invalid `signature` in `thinking` block."
_BOUND = (
    " The block is bound to a different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_NEEDS_HEADER = f" That setting requires the `{HEADER}` value in the `anthropic-beta` header."
_CHANGED = " Content before this block differs from when it was created."
_MODIFIED = (
    "messages.{}.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot "
    "be modified. These blocks must remain as they were in the original response."
)


class RefusedError(Exception):
    """A request that the API refuses with status 400."""


class _Made(NamedTuple):
    """What a block was made with: the prompt, the signature before it, and those of its reply."""

    prompt: bytes
    before: str
    reply: tuple[str, ...]


class _Sent(NamedTuple):
    """A block of thinking in a request: its place, and the prompt before its message."""

    message: int
    block: int
    signature: str
    prompt: bytes


class Binding:
    """The thinking that one API has signed.

    Attributes:
        answer: "binds" or "required", if that does not depend on the model.
    """

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer
        self._made: dict[str, _Made] = {}

    def sign(self, request: Json, blocks: list[Json]) -> list[Json]:
        """Return the blocks of a reply with the thinking among them signed for a request."""
        count = sum(block.get("type") == "thinking" for block in blocks)
        if not count:
            return blocks
        before = next((sent.signature for sent in reversed([*_thinking(request)])), "")
        signatures = tuple(f"sig-{len(self._made) + n:06d}-{'x' * 60}" for n in range(count))
        for signature in signatures:
            self._made[signature] = _Made(_prompt(request), before, signatures)
            before = signature
        left = iter(signatures)
        return [
            {**block, "signature": next(left)} if block.get("type") == "thinking" else block
            for block in blocks
        ]

    def checked(self, request: Json, headers: Mapping[str, str]) -> tuple[Json, list[Json]]:
        """Return a request as the model reads it, and the blocks that were dropped on the way.

        Raises:
            RefusedError: the API refuses it.
        """
        answer = self.answer or answer_to(request)
        for at, message in enumerate(request["messages"]):
            if message.get("content") in ("", []):
                raise RefusedError(f"messages.{at}: all messages must have non-empty content")
            kinds = {block.get("type") for block in _content(message)}
            if answer == "required" and "tool_use" in kinds and not kinds & _SIGNED.keys():
                raise RefusedError(_MISSING.format(at))
        return self._checked(request, headers) if answer == "binds" else (request, [])

    def _checked(self, request: Json, headers: Mapping[str, str]) -> tuple[Json, list[Json]]:
        may_control = HEADER in headers.get("anthropic-beta", "")
        behaviour = ((request.get("thinking") or {}).get("block_binding") or {}).get(
            "prefix_mismatch_behavior"
        )
        if behaviour and not may_control:
            raise RefusedError("thinking.block_binding: Extra inputs are not permitted")
        sent = [*_thinking(request)]
        wrong = self._first_wrong(sent)
        if wrong is None:
            self._check_latest(request, sent)
            return request, []
        first = sent[wrong]
        if first.signature not in self._made:
            raise RefusedError(_INVALID.format(first.message, first.block))
        if behaviour != "drop_block":
            text = _INVALID.format(first.message, first.block) + _BOUND
            raise RefusedError(text + ("" if may_control else _NEEDS_HEADER) + _CHANGED)
        return _without(request, sent[wrong:]), [_dropped(one) for one in sent[wrong:]]

    def _first_wrong(self, sent: list[_Sent]) -> int | None:
        last = ""
        for number, one in enumerate(sent):
            made = self._made.get(one.signature)
            if made is None or made.prompt != one.prompt or (last and made.before != last):
                return number
            last = one.signature
        return None

    def _check_latest(self, request: Json, sent: list[_Sent]) -> None:
        replies = [at for at, message in enumerate(request["messages"]) if message["role"] == "assistant"]
        own = tuple(one.signature for one in sent if replies and one.message == replies[-1])
        if own and own != self._made[own[0]].reply:
            raise RefusedError(_MODIFIED.format(replies[-1]))


def answer_to(request: Json) -> str:
    """Return what the model of a request does with its thinking: it "binds", is "required", or neither."""
    model = str(request.get("model"))
    if _MODELS.fullmatch(model):
        return "binds"
    return "required" if _REQUIRING.fullmatch(model) else ""


def _dropped(one: _Sent) -> Json:
    path = f"messages.{one.message}.content.{one.block}"
    return {"type": "thinking_dropped", "path": path, "reason": "prefix_binding_mismatch"}


def _without(request: Json, dropped: list[_Sent]) -> Json:
    places = {(one.message, one.block) for one in dropped}
    messages = [
        {**message, "content": [b for n, b in enumerate(_content(message)) if (at, n) not in places]}
        for at, message in enumerate(request["messages"])
    ]
    return {**request, "messages": messages}


def _thinking(request: Json) -> Iterator[_Sent]:
    for at, (message, prompt) in enumerate(zip(request["messages"], _prompts(request), strict=False)):
        for number, block in enumerate(_content(message)):
            if message["role"] == "assistant" and (name := _SIGNED.get(str(block.get("type")))):
                yield _Sent(at, number, str(block.get(name, "")), prompt)


def _prompt(request: Json) -> bytes:
    """Return a digest of all that a reply to a request is bound to."""
    return [*_prompts(request)][-1]


def _prompts(request: Json) -> Iterator[bytes]:
    """Yield a digest of the prompt before each message, and one of all of it."""
    tools = sorted(json.dumps(_bare(tool), sort_keys=True) for tool in request.get("tools") or [])
    digest = blake2b(_bytes([_bare(_blocks(request.get("system"))), tools]), digest_size=16)
    for message in request["messages"]:
        yield digest.digest()
        kept = [block for block in _content(message) if block.get("type") not in _SIGNED]
        digest.update(_bytes([message["role"], _bare(kept)]))
    yield digest.digest()


def _content(message: Json) -> list[Json]:
    return _blocks(message.get("content"))


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _bare(part) for name, part in value.items() if name != "cache_control"}
    return [_bare(part) for part in value] if isinstance(value, list) else value


def _bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
