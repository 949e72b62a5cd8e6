"""Calls of tools in the Messages API of Anthropic.

A reply is rebuilt from steps, each a list with a letter first: `t` thinking with its digest, `b` a blank
text, `o` any other block that the client has; `c` the text of a hidden call; `a` the texts of the answers to
those before it, in a message of their own, and `j` in the message with the client's own results. The
first three may also have the text of the block as it was sent: later thinking may be bound to it, and clients
spell blocks in another way.
https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from offload.gateway._apis.base import (
    ApiCalls,
    Json,
    Reply,
    SteppedReply,
    StreamedReply,
    WholeReply,
    digest_of,
    dumped,
    is_notice,
    key_of_thinking,
    without_reminders,
)
from offload.gateway._events import event_of
from offload.gateway._parsed import Parsed
from offload.gateway._spans import Edit, Places, read
from offload.gateway._views import as_list, mark_fields
from offload.messages.thinking import content_digest
from offload.reading.tools._definitions import Format

_SIGNED = ("thinking", "redacted_thinking")
_CALLED = "tool_use"
# The steps of the blocks that the client has.
_CLIENTS = ("t", "b", "o")


class AnthropicCalls(ApiCalls):
    """The Messages API."""

    format: Format = "anthropic"

    def without_tools(self, fields: Mapping[str, Any]) -> str | None:
        return "requests of a message thread" if "thread" in fields else None

    def wants_document(self, fields: Mapping[str, Any]) -> bool:
        config = fields.get("output_config")
        is_newer = isinstance(config, Mapping) and config.get("format")
        return bool(is_newer or fields.get("output_format"))

    def digest(self, messages: Sequence[Any]) -> str:
        return digest_of([_essence(message) for message in messages if not is_notice(message)])

    def marks(self, message: Any) -> list[str]:
        return [mark for block in _blocks(message) if (mark := _mark(block))]

    def storable(self, steps: Sequence[Any], may_store: Callable[[Any], bool]) -> list[Any]:
        return [
            step if _is_bare(step) or may_store(json.loads(step[-1])) else [*_kind_of_step(step)]
            for step in steps
        ]

    def reply(self, names: Collection[str], *, is_stream: bool) -> Reply:
        return _Streamed(names) if is_stream else _Whole(names)

    def put_back(
        self, places: Places, parsed: Parsed, at: int, steps: Sequence[Any], reply: str | None
    ) -> Iterator[Edit]:
        message = parsed.views[at]
        self.check([message], reply)
        following = parsed.views[at + 1] if at + 1 < len(parsed.views) else None
        joins = _has_results(following)
        messages, joined = _assembled(deque(_parts(places, parsed, at)), steps, joins=joins)
        yield Edit(parsed.starts[at], parsed.ends[at], ", ".join(messages))
        if joined:
            place = places.find(parsed.starts[at + 1], ("content",))
            yield Edit(place.start + 1, place.start + 1, ", ".join(joined) + ", ")


def _assembled(
    left: deque[tuple[Any, str]], steps: Sequence[Any], *, joins: bool
) -> tuple[list[str], list[str]]:
    """Return the messages that a reply goes together from, and the answers for the message behind it."""
    messages: list[str] = []
    current: list[str] = []
    last = max((i for i, step in enumerate(steps) if step[0] == "a"), default=-1)
    for index, step in enumerate(steps):
        if step[0] in _CLIENTS:
            current += _taken(left, step)
        elif step[0] == "c" and (index < last or joins):
            current.append(step[1])
        elif step[0] == "a":
            messages += [_message("assistant", current), _message("user", step[1])]
            current = []
    if left:
        raise ValueError("the reply has more blocks")
    joined: list[str] = next((step[1] for step in steps if step[0] == "j" and joins), [])
    return ([*messages, _message("assistant", current)] if current else messages), joined


def _taken(left: deque[tuple[Any, str]], step: Sequence[str]) -> list[str]:
    """Take the block of a step from those of the client; it may have left out thinking and blank texts."""
    size = len(_kind_of_step(step))
    if not left or _kind(left[0][0]) != [*step[:size]]:
        if step[0] == "o":
            raise ValueError("a block of the reply is gone")
        return []
    block, text = left.popleft()
    if len(step) == size:
        return [text]
    return [f"{step[-1][:-1]}{mark_fields(block)}}}"]


def _is_bare(step: Sequence[Any]) -> bool:
    """Return whether a step lacks the text of a block, or has no block of the client."""
    return step[0] not in _CLIENTS or len(step) == len(_kind_of_step(step))


def _kind_of_step(step: Sequence[str]) -> Sequence[str]:
    """Return a step without the text of its block."""
    return step[:2] if step[0] == "t" else step[:1]


def _message(role: str, blocks: Sequence[str]) -> str:
    return f'{{"role": "{role}", "content": [{", ".join(blocks)}]}}'


def _parts(places: Places, parsed: Parsed, at: int) -> Iterator[tuple[Any, str]]:
    """Yield the blocks of a message, each with its text in the request."""
    content = parsed.views[at].get("content")
    if isinstance(content, str):
        yield {"type": "text", "text": content}, dumped({"type": "text", "text": content})
        return
    for index, block in enumerate(as_list(content)):
        inner = places.find(parsed.starts[at], ("content", index))
        yield block, read(parsed.text[inner.start : inner.end])


def _has_results(message: Any) -> bool:
    is_user = isinstance(message, dict) and message.get("role") == "user"
    return is_user and any(block.get("type") == "tool_result" for block in _blocks(message))


def _blocks(message: Any) -> list[Json]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in as_list(content) if isinstance(block, dict)]


def _kind(block: Any) -> list[Any]:
    """Return the step of a block."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _SIGNED:
        return ["t", key_of_thinking(block, "signature", "data", "thinking")]
    return ["b"] if kind == "text" and not str(block.get("text")).strip() else ["o"]


def _mark(block: Json) -> str | None:
    if block.get("type") in _SIGNED:
        return str(_kind(block)[1])
    return str(block.get("id")) if block.get("type") == _CALLED else None


def _essence(message: Any) -> Any:
    """Return what clients repeat of a message."""
    if not (isinstance(message, dict) and message.get("role") == "assistant"):
        return content_digest(without_reminders(message))
    return ["assistant", *(_essence_of(block) for block in _blocks(message) if _kind(block) == ["o"])]


def _essence_of(block: Json) -> Any:
    if block.get("type") == "text":
        return [block.get("text")]
    if block.get("type") == _CALLED:
        return [block.get("id"), block.get("name"), block.get("input")]
    return content_digest({"content": [block]})


class _Blocks(SteppedReply):
    """The blocks of a reply as they come, from one answer after another."""

    _ARGUMENTS, _CALLING = "input", _CALLED

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        # The blocks of this answer that the client has, with their places in `steps`.
        self._shown: list[tuple[int, Json]] = []

    def _called(self, block: Json) -> Json | None:
        return block if block.get("type") == _CALLED else None

    def _is_text(self, block: Json) -> bool:
        return block.get("type") == "text"

    def add(self, block: Json) -> None:
        if self.is_hidden(block):
            self._hide(block)
            return
        self.visible.append(block)
        self._shown.append((len(self.steps), block))
        self.steps.append(_kind(block))
        self._own += block.get("type") == _CALLED
        if (mark := _mark(block)) is not None:
            self.marks.append(mark)
            if self._answers > 1 and block.get("type") in _SIGNED:
                self.unfounded.append(mark)

    def _stop_here(self) -> None:
        self._forget()
        self._stop = "max_tokens" if self.is_document else "end_turn"

    def _can_end(self) -> bool:
        # The last block may be neither thinking nor blank.
        return bool(self.visible) and _kind(self.visible[-1]) == ["o"]

    def _say(self, text: str) -> None:
        self.add({"type": "text", "text": text})

    def _answer(self, block: Json, _own: int, answer: str) -> str:
        return dumped({"type": "tool_result", "tool_use_id": block.get("id"), "content": answer})

    def _next_answer(self) -> None:
        super()._next_answer()
        for at, block in self._shown:
            self.steps[at] = [*self.steps[at], dumped(block)]
        self._shown = []

    def messages(self) -> list[str]:
        return [dumped({"role": "assistant", "content": self.visible})]


class _Whole(WholeReply, _Blocks):
    """A reply that comes as one JSON value."""

    def _take(self, value: Any) -> None:
        content = value["content"]
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise TypeError("a content of another form")
        usage = value.get("usage")
        self._usage = usage if isinstance(usage, dict) else {}
        self._stop = value.get("stop_reason")
        for block in content:
            self.add(block)

    def _final(self, first: Json, value: Json) -> Json:
        own = {"id": first.get("id"), "content": self.visible, "stop_reason": self._stop}
        return {**value, **own, "usage": self._all_usage()}


class _Streamed(StreamedReply, _Blocks):
    """A reply that comes as a stream of events."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        # By the provider's index, the blocks that are open.
        self._open: dict[Any, OpenBlock] = {}
        # The end of the message, which waits until the provider has nothing more to say.
        self._delta: tuple[bytes, Json] | None = None

    def _begins_text(self, data: Any) -> bool:
        return data["type"] == "content_block_start" and self._is_text(data["content_block"])

    def _passed(self, event: bytes, data: Any) -> bytes:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind == "message_start":
            usage = data["message"].get("usage") if isinstance(data.get("message"), dict) else None
            self._usage = usage if isinstance(usage, dict) else {}
            return event if self._answers == 1 else b""
        if kind == "message_delta":
            self._delta = self._with_delta(event, data)
            counted = {name: value for name, value in (data.get("usage") or {}).items() if value is not None}
            self._usage = {**self._usage, **counted}
            self._stop = (data.get("delta") or {}).get("stop_reason") or self._stop
            return b""
        if kind == "message_stop":
            self._last = event
            return b""
        if isinstance(data, dict) and "index" in data:
            return self._of_block(event, data)
        return event

    def _with_delta(self, event: bytes, data: Json) -> tuple[bytes, Json]:
        """Return the end of the message with one more event."""
        before, known = self._delta or (b"", {})
        new = {name: value for name, value in (data.get("delta") or {}).items() if value is not None}
        return before + event, {**known, **data, "delta": {**(known.get("delta") or {}), **new}}

    def _of_block(self, event: bytes, data: Json) -> bytes:
        index = data["index"]
        if data["type"] == "content_block_start":
            self._open[index] = OpenBlock(data["content_block"])
            self._begin(index, is_hidden=self.is_hidden(data["content_block"]))
        elif data["type"] == "content_block_delta" and index in self._open:
            self._open[index].grow(data["delta"])
        elif data["type"] == "content_block_stop" and index in self._open:
            self.add(self._open.pop(index).closed())
        place = self._indexes.get(index, index)
        if place is None:
            return b""
        return event if place == index else event_of({**data, "index": place})

    def _next_answer(self) -> None:
        super()._next_answer()
        self._open, self._delta = {}, None

    def close(self, *, is_stopped: bool) -> bytes:
        if self._delta is None:
            return self._last
        event, data = self._delta
        ended = b""
        if (text := self._ended_with(is_stopped=is_stopped)) is not None:
            data = {**data, "delta": {**data["delta"], "stop_reason": self._stop}}
            ended = b"".join(map(event_of, _text_events(self._next, text)))
        elif self._answers == 1:
            return event + self._last
        return ended + event_of({**data, "usage": self._all_usage()}) + self._last

    def failed(self, error: Any) -> bytes:
        return event_of(cast("Json", error))


def _text_events(index: int, text: str) -> Iterator[Json]:
    yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
    yield {"type": "content_block_stop", "index": index}


class OpenBlock:
    """A block of a stream that has not ended."""

    def __init__(self, block: Json) -> None:
        self._block = dict(block)
        # By field, the parts that follow what the block began with.
        self._parts: defaultdict[str, list[str]] = defaultdict(list)

    def grow(self, delta: Json) -> None:
        for name, value in delta.items():
            if name == "citation":
                self._block["citations"] = [*as_list(self._block.get("citations")), value]
            elif name != "type" and isinstance(value, str):
                self._parts[name].append(value)

    def closed(self) -> Json:
        texts = {name: "".join(parts) for name, parts in self._parts.items()}
        text = texts.pop("partial_json", "")
        if text:
            try:
                self._block["input"] = json.loads(text)
            except ValueError:
                self._block["input"] = {}
        grown = {name: (self._block.get(name) or "") + value for name, value in texts.items()}
        return {**self._block, **grown}
