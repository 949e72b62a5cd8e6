"""A provider's check of signed thinking: each block is bound to what was sent before it.

Written from https://platform.claude.com/docs/en/build-with-claude/preserved-thinking, without the library:
a block of thinking is, in any format, the smallest part of a list of a message that holds a signature of
this provider. The rules:

- The prefix of a block is the system prompt, the set of tools and all messages before it, without thinking
  and marks of the cache. If it differs from the one that the block was made with, the request is refused.
- The blocks that are sent back are a run of the original ones: each records the one before it. They may be
  left out from the start or from the end, not between others, and one that was left out never comes back
  before one that was made without it.
- The blocks of the latest message of the model come back as they were made, all or none of them.
- A message with an empty list of content is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

# A model whose provider is known to have these rules.
MODEL = "claude-opus-5-5"
_MARKS = ("cache_control", "cachePoint")
REFUSAL = (
    "messages.{}.content.{}: Invalid `signature` in `thinking` block. The block is bound to a different "
    "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
    '"drop_block".'
)
MISSING = "thinking is enabled but reasoning_content is missing in assistant tool call message at index {}"
MODIFIED = (
    "messages.{}.content.{}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot "
    "be modified. These blocks must remain as they were in the original response."
)


class BoundError(Exception):
    """A refusal, with status 400 as an SDK's error has it."""

    status_code = 400


class _Made(NamedTuple):
    """What a block was made with: the prefix, the block before it, and those of its message."""

    prefix: str
    before: str | None
    turn: tuple[str, ...]


class Binding:
    """Signs thinking and checks what comes back; `checked` counts the requests that passed."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self.checked = 0

    def sign(
        self, messages: Sequence[Any], *, system: Any = "", tools: Sequence[Any] = (), blocks: int = 1
    ) -> list[str]:
        """Return the signatures of the thinking of a reply to a request."""
        turn = [f"signature-{len(self._made) + n}-{'x' * 40}" for n in range(blocks)]
        self.learn(turn, messages, system=system, tools=tools)
        return turn

    def learn(
        self,
        signatures: Sequence[str],
        messages: Sequence[Any],
        *,
        system: Any = "",
        tools: Sequence[Any] = (),
    ) -> None:
        """Take the signatures of a recorded reply as if this provider had made it to a request."""
        *_, prefix = self._prefixes(messages, system, tools)
        before = next((s for _, _, s in reversed([*self._blocks(messages)])), None)
        for signature in signatures:
            assert signature not in self._made, "a provider makes no signature twice"
            self._made[signature] = _Made(prefix, before, tuple(signatures))
            before = signature

    def check(self, messages: Sequence[Any], *, system: Any = "", tools: Sequence[Any] = ()) -> None:
        """Raise `BoundError` for a request that the provider would refuse."""
        last: str | None = None
        prefixes = self._prefixes(messages, system, tools)
        for at, block, signature in self._blocks(messages):
            made = self._made[signature]
            is_same = made.prefix == prefixes[at]
            if not is_same or (last is not None and made.before != last):
                raise BoundError(REFUSAL.format(at, block))
            last = signature
        for at, message in enumerate(messages):
            if _get(message, "content") == []:
                raise BoundError(f"messages.{at}: content must not be empty")
        latest = max((at for at, m in enumerate(messages) if _is_reply(m)), default=None)
        if latest is not None:
            own = [s for at, _, s in self._blocks(messages) if at == latest]
            if own and tuple(own) != self._made[own[0]].turn:
                raise BoundError(MODIFIED.format(latest, 0))
        self.checked += 1

    def signatures(self, messages: Sequence[Any]) -> list[str]:
        """Return the signatures of this provider in a request, in order."""
        return [signature for _, _, signature in self._blocks(messages)]

    def _prefixes(self, messages: Sequence[Any], system: Any, tools: Sequence[Any]) -> list[str]:
        """Return a digest of all before each message, and of all."""
        named = sorted(json.dumps(_data(tool), sort_keys=True) for tool in tools)
        digest = sha256(json.dumps([_data(system), named], sort_keys=True).encode())
        prefixes = [digest.hexdigest()]
        for message in messages:
            digest.update(json.dumps(self._bare(_data(message)), sort_keys=True).encode() + b"\n")
            prefixes.append(digest.hexdigest())
        return prefixes

    def _blocks(self, messages: Sequence[Any]) -> Iterator[tuple[int, int, str]]:
        for at, message in enumerate(messages):
            for block, signature in enumerate(self._signatures(_data(message))):
                yield at, block, signature

    def _signatures(self, value: Any) -> Iterator[str]:
        if isinstance(value, str) and value in self._made:
            yield value
        elif isinstance(value, Mapping):
            for part in value.values():
                yield from self._signatures(part)
        elif isinstance(value, list):
            for part in value:
                yield from self._signatures(part)

    def _bare(self, value: Any) -> Any:
        """Return a message without thinking, marks of the cache and empty fields."""
        if isinstance(value, Mapping):
            fields = {k: self._bare(v) for k, v in value.items() if v is not None and k not in _MARKS}
            return {k: v for k, v in fields.items() if v != []}
        if isinstance(value, list):
            kept = [part for part in value if not self._is_thinking(part) and not _is_mark(part)]
            return [self._bare(part) for part in kept]
        return value

    def _is_thinking(self, part: Any) -> bool:
        """Return whether a part of a list holds a signature, and no list in it does."""
        if not isinstance(part, Mapping):
            return False
        lists = [value for value in part.values() if isinstance(value, list)]
        is_deeper = any(next(self._signatures(value), None) for value in lists)
        return not is_deeper and next(self._signatures(part), None) is not None


class Requiring(Binding):
    """A provider that binds nothing, and refuses a tool call without the thinking that it was made with.

    As https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model says; its replies have thinking.
    """

    def sign(
        self, messages: Sequence[Any], *, system: Any = "", tools: Sequence[Any] = (), blocks: int = 1
    ) -> list[str]:
        """Return the signatures of the thinking of a reply to a request, one at least."""
        return super().sign(messages, system=system, tools=tools, blocks=max(1, blocks))

    def check(self, messages: Sequence[Any], *, system: Any = "", tools: Sequence[Any] = ()) -> None:
        """Raise `BoundError` for a request that the provider would refuse."""
        del system, tools
        for at, message in enumerate(messages):
            content = _get(message, "content")
            kinds = {_get(part, "type") for part in content} if isinstance(content, list) else set()
            if "tool_use" in kinds and not self.signatures([message]):
                raise BoundError(MISSING.format(at))
        self.checked += 1


def _is_mark(part: Any) -> bool:
    return isinstance(part, Mapping) and bool(part) and {*part} <= {*_MARKS}


def _get(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _is_reply(message: Any) -> bool:
    return _get(message, "role") in ("assistant", "model") or _get(message, "type") == "ai"


def _data(value: Any) -> Any:
    """Return a message, or another value, as JSON values."""
    if hasattr(value, "model_dump"):
        return _data(value.model_dump(mode="json", exclude_unset=True, warnings=False))
    if isinstance(value, Mapping):
        return {str(name): _data(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_data(part) for part in value]
    return value.hex() if isinstance(value, bytes) else value
