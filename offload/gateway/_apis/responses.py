"""Calls of tools in OpenAI's Responses API.

A reply is a run of items, and its hidden calls and their answers are items between them. It is rebuilt from
steps, each a list with a letter first: `t` reasoning with its digest; `o` any other item that the client has;
`c` the text of a hidden call; `a` the texts of the answers to those before it, and `j` the same where the
client has calls in the same answer.
https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, count, pairwise
from typing import Any
from uuid import uuid4

from offload.gateway._apis.base import (
    ApiCalls,
    Json,
    OwnCall,
    Reply,
    SteppedReply,
    StreamedReply,
    WholeReply,
    digest_of,
    dumped,
    is_notice,
    key_of_thinking,
    summed,
    without_reminders,
)
from offload.gateway._events import event_of
from offload.gateway._parsed import Parsed
from offload.gateway._spans import Edit, Places
from offload.gateway._views import as_list
from offload.messages.thinking import content_digest
from offload.reading.tools._definitions import Format

_CALLED, _REASONED, _OUTPUT = "function_call", "reasoning", "_output"
# Calls that the client answers.
_OWN = (
    *(_CALLED, "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"),
    "mcp_approval_request",
)
# The provider runs these calls.
_SERVED = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
)
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_BEGINS = ("response.created", "response.in_progress", "response.queued")
_CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
# Clients do not repeat them, or not as they came.
_NO_PART = ("id", "status", "logprobs", "annotations")


class ResponsesCalls(ApiCalls):
    """The Responses API."""

    format: Format = "openai-responses"

    def without_tools(self, fields: Mapping[str, Any]) -> str | None:
        """Return which requests get no tools if this is one of them.

        A reply that the provider keeps can be continued and read by its id, and its items referred to by
        theirs: the provider would have calls there that the client cannot answer.
        """
        if fields.get("store") is not False:
            return "requests whose reply the provider keeps, as without `store: false`,"
        return "requests in the background" if fields.get("background") else None

    def wants_document(self, fields: Mapping[str, Any]) -> bool:
        text = fields.get("text")
        form = text.get("format") if isinstance(text, Mapping) else None
        return isinstance(form, Mapping) and form.get("type") not in (None, "text")

    def is_reply(self, message: Any) -> bool:
        if not isinstance(message, dict):
            return False
        kind = message.get("type")
        return message.get("role") == "assistant" or kind in (_REASONED, *_OWN, *_SERVED)

    def digest(self, messages: Sequence[Any]) -> str:
        counted = (item for item in messages if not (_is_reasoning(item) or is_notice(item)))
        return digest_of([_essence(item) for item in counted])

    def marks(self, message: Any) -> list[str]:
        mark = _mark(message) if isinstance(message, dict) else None
        return [] if mark is None else [mark]

    def loose(self, messages: Sequence[Any]) -> Iterator[int]:
        """Yield the index of reasoning before no other item of the model."""
        for index, (item, following) in enumerate(pairwise(messages)):
            if _is_reasoning(item) and (_is_reasoning(following) or _is_of_client(following)):
                yield index

    def reply(self, names: Collection[str], *, is_stream: bool) -> Reply:
        return _Streamed(names) if is_stream else _Whole(names)

    def put_back(
        self, _places: Places, parsed: Parsed, at: int, steps: Sequence[Any], reply: str | None
    ) -> Iterator[Edit]:
        taken: list[Any] = []
        end: int | None = None
        start, following = at, at
        inserted: dict[int | None, list[str]] = {}
        for kind, value in ((step[0], step[-1]) for step in steps):
            if kind in "to":
                found = _next(parsed.views, following, kind, value)
                if found is not None:
                    taken.append(parsed.views[found])
                    end, following = found, found + 1
            else:
                inserted.setdefault(end, []).extend([value] if kind == "c" else value)
        self.check(taken, reply)
        for place, texts in inserted.items():
            if place is not None:
                yield Edit(parsed.ends[place], parsed.ends[place], "".join(f", {text}" for text in texts))
            elif start < len(parsed.starts):
                yield Edit(parsed.starts[start], parsed.starts[start], "".join(f"{t}, " for t in texts))
            else:
                last = parsed.ends[-1]
                yield Edit(last, last, "".join(f", {text}" for text in texts))


def _next(items: Sequence[Any], at: int, kind: str, key: str) -> int | None:
    """Return the index of the next item of a reply; None for reasoning that the client left out."""
    for index in range(at, len(items)):
        item = items[index]
        if str(item.get("type")).endswith(_OUTPUT):
            continue
        if _is_reasoning(item):
            if kind == "t" and _key(item) == key:
                return index
            if kind == "t":
                return None
            raise ValueError("the reply has more reasoning")
        if kind == "t":
            return None
        return index
    if kind == "t":
        return None
    raise ValueError("an item of the reply is gone")


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == _REASONED


def _is_of_client(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    return item.get("role") in ("user", "system", "developer") or str(item.get("type")).endswith(_OUTPUT)


def _key(item: Json) -> str:
    return key_of_thinking(item, "encrypted_content", "id")


def _mark(item: Json) -> str | None:
    if _is_reasoning(item):
        return _key(item)
    return str(item.get("call_id")) if item.get("type") in _OWN else None


def _essence(item: Any) -> Any:
    """Return what clients repeat of an item."""
    if not isinstance(item, dict):
        return content_digest({"content": item})
    if "role" in item:
        content = (item if item["role"] == "assistant" else without_reminders(item)).get("content")
        parts = [{"text": content}] if isinstance(content, str) else as_list(content)
        return [item["role"], [_essence_of(part) for part in parts]]
    return content_digest({name: value for name, value in item.items() if name not in _NO_PART})


def _essence_of(part: Any) -> Any:
    is_text = isinstance(part, dict) and isinstance(part.get("text"), str)
    return part["text"] if is_text else content_digest({"content": [part]})


class _ReplyItems(SteppedReply):
    """The items of a reply as they come, from one answer after another."""

    _CALLING = "completed"

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._first: Json | None = None
        self._response: Json | None = None
        # Fields of the response that say that its document was not written.
        self._cut: Json = {}
        # All ids of items, and those of this answer by the provider's.
        self._taken: set[str] = set()
        self._ids: dict[str, str] = {}

    def _called(self, item: Json) -> Json | None:
        return item if item.get("type") == _CALLED else None

    def _is_text(self, item: Json) -> bool:
        return item.get("type") == "message"

    def _texts_in(self, item: Json) -> Iterator[Json]:
        parts = (part for part in as_list(item.get("content")) if isinstance(part, dict))
        return (part for part in parts if isinstance(part.get("text"), str))

    def add(self, item: Json) -> None:
        item = self._with_id(item, "id")
        if self.is_hidden(item):
            self._hide(item)
            return
        self.visible.append(item)
        self.steps.append(["t", _key(item)] if _is_reasoning(item) else ["o"])
        self._own += item.get("type") in _OWN
        if (mark := _mark(item)) is not None:
            self.marks.append(mark)

    def _with_id(self, holder: Json, field: str) -> Json:
        """Return an item, or an event about one, with an id that no item of an earlier answer has."""
        name = holder.get(field)
        if not isinstance(name, str):
            return holder
        if name not in self._ids:
            others = (f"{name}_{number}" for number in count(2))
            self._ids[name] = next(one for one in chain([name], others) if one not in self._taken)
            self._taken.add(self._ids[name])
        own = self._ids[name]
        return holder if own == name else {**holder, field: own}

    def _ended(self) -> tuple[list[OwnCall], bool]:
        self._stop = None if self._response is None else self._response.get("status", "")
        self._usage = (self._response or {}).get("usage") or {}
        return super()._ended()

    def _stop_here(self) -> None:
        self._forget()
        self._cut = _CUT if self.is_document else {}

    def _can_end(self) -> bool:
        # Reasoning alone can: see `ResponsesCalls.loose`.
        return bool(self.visible)

    def _say(self, text: str) -> None:
        self.add(_message(text))

    def _answer(self, item: Json, _own: int, answer: str) -> str:
        return dumped({"type": "function_call_output", "call_id": item.get("call_id"), "output": answer})

    def _next_answer(self) -> None:
        super()._next_answer()
        self._response, self._ids = None, {}

    def messages(self) -> list[str]:
        """Return the reply so far; reasoning that only the provider could know is not part of it."""
        is_kept = (self._first or {}).get("store") is not False
        return [
            dumped(item)
            for item in self.visible
            if is_kept or not _is_reasoning(item) or item.get("encrypted_content")
        ]

    def _as_seen(self, first: Json, value: Json) -> Json:
        """Return the response as the client gets it."""
        own: Json = {"id": first.get("id"), "output": self.visible, **self._cut}
        if isinstance(value.get("usage"), dict):
            own["usage"] = summed(self._before, value["usage"])
        return {**value, **own}


def _message(text: str) -> Json:
    """Return a message of the model, with an id that no other one has."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_{uuid4().hex}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


class _Whole(WholeReply, _ReplyItems):
    """A reply that comes as one JSON value."""

    def _take(self, value: Any) -> None:
        output = value["output"]
        if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
            raise TypeError("an output of another form")
        self._response = {"status": self._CALLING} | value
        for item in output:
            self.add(item)

    def _final(self, first: Json, value: Json) -> Json:
        return self._as_seen(first, value)


class _Streamed(StreamedReply, _ReplyItems):
    """A reply that comes as a stream of events."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        # The client's number of the next event.
        self._sequence = 0
        self._end: tuple[bytes, Json] | None = None

    def _begins_text(self, data: Any) -> bool:
        return data["type"] == "response.output_item.added" and self._is_text(data["item"])

    def _passed(self, event: bytes, data: Any) -> bytes:
        if not isinstance(data, dict):
            return event
        kind = data.get("type")
        if kind in _BEGINS:
            if isinstance(data.get("response"), dict):
                self._first = self._first or data["response"]
            return self._numbered(event, data) if self._answers == 1 else b""
        if kind in _ENDS:
            self._end = event, data
            response = data.get("response")
            status = {"status": kind.removeprefix("response.")}
            self._response = status | response if isinstance(response, dict) else None
            return b""
        if "output_index" not in data:
            return self._numbered(event, data)
        return self._of_item(event, data)

    def _of_item(self, event: bytes, data: Json) -> bytes:
        index, item = data["output_index"], data.get("item")
        if index not in self._indexes:
            self._begin(index, is_hidden=isinstance(item, dict) and self.is_hidden(item))
        if data["type"] == "response.output_item.done" and isinstance(item, dict):
            self.add(item)
        place = self._indexes[index]
        if place is None:
            self._was_hidden = True
            return b""
        changed = self._with_id(data, "item_id")
        if isinstance(item, dict) and (named := self._with_id(item, "id")) is not item:
            changed = {**changed, "item": named}
        if place == index and changed is data:
            return self._numbered(event, data)
        return self._written({**changed, "output_index": place})

    def _numbered(self, event: bytes, data: Json) -> bytes:
        """Return an event with the next number, unchanged if it can be."""
        number = data.get("sequence_number")
        if self._was_hidden and number is not None:
            return self._written(data)
        self._sequence = number + 1 if isinstance(number, int) else self._sequence
        return event

    def _written(self, data: Json) -> bytes:
        """Return a changed or a new event, with the next number unless the provider gives none."""
        number, self._sequence = self._sequence, self._sequence + 1
        return event_of({**data, "sequence_number": number} if "sequence_number" in data else data)

    def end(self) -> tuple[list[OwnCall], bool]:
        if self._response is not None and not self._indexes:
            # A provider that sends the items only at the end.
            for item in as_list(self._response.get("output")):
                if isinstance(item, dict):
                    self.add(item)
        return super().end()

    def _next_answer(self) -> None:
        super()._next_answer()
        self._end = None

    def close(self, *, is_stopped: bool) -> bytes:
        if self._end is None:
            return self._last
        event, data = self._end
        if not self._was_hidden or self._response is None:
            return event + self._last
        more = b""
        if self._ended_with(is_stopped=is_stopped) is not None:
            # They are numbered as the end of the response is.
            numbers = {name: 0 for name in ("sequence_number",) if name in data}
            events = _item_events(self.visible[-1], self._next)
            more = b"".join(self._written({**one, **numbers}) for one in events)
        kind = "response.incomplete" if self._cut else data["type"]
        final = {
            **data,
            "type": kind,
            "response": self._as_seen(self._first or self._response, self._response),
        }
        return more + self._written(final) + self._last

    def failed(self, error: Any) -> bytes:
        inner = error.get("error") if isinstance(error.get("error"), dict) else error
        fields = {name: inner.get(name) for name in ("code", "message", "param")}
        return event_of({"type": "error", **fields, "sequence_number": self._sequence})


def _item_events(item: Json, index: int) -> Iterator[Json]:
    """Yield the events of a message with one text."""
    [part] = item["content"]
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    at = {"output_index": index}
    empty = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", **at, "item": empty}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", **at, "item": item}
