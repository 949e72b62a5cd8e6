"""Calls of tools in OpenAI's chat completions, and in the many APIs of that form.

The client has one message: texts of several answers follow each other in each of its fields. A reply is
rebuilt from steps, one for each answer with hidden calls:

- `spans`: by field, where the part of this answer is in the field of the client's message;
- `calls`: pairs of the place among the calls of the answer, and the text of a hidden call;
- `answers`: the texts of the messages that answer them;
- `unsaid`: a text of this answer that the client does not have; missing without one;
- `goes_on`: whether another answer followed; else the client has calls in this one.

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from offload.gateway._apis.base import (
    ApiCalls,
    Json,
    OwnCall,
    Reply,
    StreamedReply,
    WholeReply,
    digest_of,
    dumped,
    is_notice,
    without_reminders,
)
from offload.gateway._events import event_of
from offload.gateway._parsed import Parsed
from offload.gateway._spans import Edit, Places
from offload.gateway._views import as_list
from offload.messages.thinking import content_digest
from offload.reading.tools._definitions import Format

# Between the texts of two answers; only the client gets it.
_BETWEEN = "\n\n"
_DONE = b"[DONE]"
# Some providers say that a reply with calls just stopped.
_CALLING = ("tool_calls", "stop")
# Fields of an object with an index that a stream has in parts.
_SAID = ("text", "summary", "signature")
# Fields of servers of one's own that ask for a text of some form.
_GUIDED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
)
# Fields of a message that are not part of what it says.
_NO_PART = ("role", "tool_calls", "refusal", "audio", "function_call", "annotations")


class ChatCalls(ApiCalls):
    """Chat completions."""

    format: Format = "openai"

    def without_tools(self, fields: Mapping[str, Any]) -> str | None:
        if fields.get("n") not in (None, 1):
            return "requests for several replies"
        return "requests with `functions`" if fields.get("functions") else None

    def wants_document(self, fields: Mapping[str, Any]) -> bool:
        form = fields.get("response_format")
        kind = form.get("type") if isinstance(form, Mapping) else None
        return kind not in (None, "text") or any(fields.get(name) for name in _GUIDED)

    def digest(self, messages: Sequence[Any]) -> str:
        return digest_of([_essence(message) for message in messages if not is_notice(message)])

    def marks(self, message: Any) -> list[str]:
        """Return the ids of the calls in a message."""
        calls = as_list(message.get("tool_calls")) if isinstance(message, dict) else []
        return [str(call.get("id")) for call in calls if isinstance(call, dict)]

    def reply(self, names: Collection[str], *, is_stream: bool) -> Reply:
        return _Streamed(names) if is_stream else _Whole(names)

    def put_back(
        self, _places: Places, parsed: Parsed, at: int, steps: Sequence[Any], reply: str | None
    ) -> Iterator[Edit]:
        message = parsed.views[at]
        self.check([message], reply)
        following = parsed.views[at + 1] if at + 1 < len(parsed.views) else None
        texts, tail, behind = list[str](), dict(message), list[str]()
        for step in steps:
            if step["goes_on"]:
                texts += [_part(message, step), *step["answers"]]
                tail = _behind(message, step["spans"])
            elif isinstance(following, dict) and following.get("role") == "tool":
                tail["tool_calls"] = _with_calls(as_list(tail.get("tool_calls")), step["calls"])
                behind = step["answers"]
        if any(value for name, value in tail.items() if name != "role"):
            texts.append(dumped(tail))
        yield Edit(parsed.starts[at], parsed.ends[at], ", ".join([*texts, *behind]))


def _part(message: Json, step: Json) -> str:
    """Return the text of the message that one answer was."""
    fields = {}
    for name, (start, stop) in step["spans"].items():
        value = _text_of(message.get(name)) if name == "content" else message.get(name)
        if isinstance(value, str | list) and stop > start:
            fields[name] = _between(value, start, stop)
    calls = [json.loads(text) for _, text in step["calls"]]
    return dumped({"role": "assistant", "content": step.get("unsaid"), **fields, "tool_calls": calls})


def _behind(message: Json, spans: Mapping[str, Sequence[int]]) -> Json:
    """Return a message with what came behind an answer."""
    tail = dict(message)
    for name, (_, stop) in spans.items():
        if name == "content":
            tail[name] = _text_of(message.get(name))[stop:].removeprefix(_BETWEEN if stop else "") or None
        elif isinstance(message.get(name), str | list):
            tail[name] = _between(message[name], stop, None) or None
    return tail


def _is_indexed(value: Any) -> bool:
    """Return whether the objects in a list have indexes, by which clients join what a stream has of each."""
    return bool(as_list(value)) and all(
        isinstance(one, dict) and isinstance(one.get("index"), int) for one in value
    )


def _size(value: Any) -> int:
    return max(one["index"] for one in value) + 1 if _is_indexed(value) else len(value)


def _between(value: Any, start: int, stop: int | None) -> Any:
    """Return a part of a text or a list; that of a list with indexes is joined, and counted from 0."""
    if not _is_indexed(value):
        return value[start:stop]
    end = _size(value) if stop is None else stop
    return _joined(_moved((one for one in value if start <= one["index"] < end), -start))


def _moved(details: Iterable[Json], by: int) -> list[Json]:
    return [{**one, "index": one["index"] + by} for one in details]


def _joined(details: Iterable[Json]) -> list[Json]:
    """Return objects with what a stream had of each in one; a sealed one comes whole."""
    joined: list[Json] = []
    for one in details:
        before = joined[-1] if joined else {}
        if "data" in one or any(before.get(name) != one.get(name) for name in ("index", "type")):
            joined.append(one)
            continue
        for name in _SAID:
            if isinstance(one.get(name), str):
                before = {**before, name: (before.get(name) or "") + one[name]}
        joined[-1] = {**one, **{name: value for name, value in before.items() if value is not None}}
    return joined


def _with_calls(own: list[Any], hidden: Sequence[tuple[int, str]]) -> list[Any]:
    calls = [*own]
    for place, text in hidden:
        calls.insert(place, json.loads(text))
    return calls


def _text_of(content: Any) -> str:
    """Return the text of a content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in as_list(content) if isinstance(part, dict))


def _essence(message: Any) -> Any:
    """Return what clients repeat of a message."""
    if not (isinstance(message, dict) and message.get("role") == "assistant"):
        return content_digest(without_reminders(message))
    calls = [call for call in as_list(message.get("tool_calls")) if isinstance(call, dict)]
    functions = [(call.get("id"), call.get("function") or {}) for call in calls]
    named = [[name, one.get("name"), one.get("arguments")] for name, one in functions]
    return ["assistant", _text_of(message.get("content")), named]


class _Grown:
    """A field of a message whose parts, texts or lists, are joined once they are asked for."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._parts: list[Any] = []
        self.size = 0

    def add(self, part: Any) -> None:
        """Add a part. Raises `TypeError` for one of another kind."""
        if not isinstance(part, str | list) or type(part) is not self._kind:
            raise TypeError(f"a part of a field is no {self._kind.__name__}")
        self._parts.append(part)
        self.size = max(self.size, _size(part)) if _is_indexed(part) else self.size + len(part)

    @property
    def value(self) -> Any:
        if self._kind is str:
            return "".join(self._parts)
        items = [*chain.from_iterable(self._parts)]
        return _joined(items) if _is_indexed(items) else items


class _ReplyMessage(Reply):
    """The message of a reply as it comes, from one answer after another."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        # The fields that the client has, and where the parts of this answer begin in them.
        self._grown: dict[str, _Grown] = {}
        self._starts: dict[str, int] = {}
        self._own: list[Json] = []
        # The text of this answer that the client does not get.
        self._unsaid: _Grown | None = None
        # All calls of this answer, by their number.
        self._calls: dict[Any, Json] = {}
        self._stop: Any = None
        # The last text of a reply that is ended.
        self.stopped: Json = {}

    def grow(self, part: Json) -> Json:
        """Add a part of the message, and return it as the client gets it, without calls."""
        passed: Json = dict(part)
        passed.pop("tool_calls", None)
        if self._answers > 1:
            passed.pop("role", None)
        for name, value in part.items():
            if name in _NO_PART or not isinstance(value, str | list) or not value:
                continue
            if name == "content" and self._hides_texts:
                self._unsaid = self._unsaid or _Grown(type(value))
                self._unsaid.add(passed.pop(name))
            else:
                passed[name] = self._extended(name, value)
        return passed

    def _extended(self, name: str, value: Any) -> Any:
        """Add to a field; return what the client gets of it."""
        held = self._grown.setdefault(name, _Grown(type(value)))
        start = self._starts.setdefault(name, held.size)
        if _is_indexed(value):
            moved = _moved(value, start)
            held.add(moved)
            return moved
        is_first = name == "content" and start == held.size > 0 and self._answers > 1
        if is_first:
            held.add(_BETWEEN)
            self._starts[name] = held.size
        held.add(value)
        return f"{_BETWEEN}{value}" if is_first else value

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the client has."""
        return {name: grown.value for name, grown in self._grown.items()}

    def _called(self, call: Json) -> Json | None:
        return call.get("function") or None

    def _hidden(self) -> list[tuple[int, Json]]:
        return [(at, call) for at, call in enumerate(self._calls.values()) if self.is_hidden(call)]

    def _ended(self) -> tuple[list[OwnCall], bool]:
        self.is_whole = self._stop is not None
        own = [call for call in self._calls.values() if not self.is_hidden(call)]
        self._own += own
        self.marks += [str(call.get("id")) for call in own]
        if self._stop not in _CALLING:
            self._forget()
        return self._calls_in(call for _, call in self._hidden()), bool(own)

    def _forget(self) -> None:
        self._calls, self._hides_texts = {}, False

    def _stop_here(self) -> None:
        self._forget()
        self._stop = "length" if self.is_document else "stop"

    def _can_end(self) -> bool:
        return "content" in self._grown or bool(self._own)

    def _say(self, text: str) -> None:
        self.stopped = self.grow({"content": text})

    def texts(self) -> list[OwnCall]:
        return [] if self._unsaid is None else [OwnCall(0, "", self._unsaid.value)]

    def rewritten(self, call: OwnCall) -> None:
        if not call.name:
            self._unsaid = _Grown(type(call.arguments))
            self._unsaid.add(call.arguments)
            return
        _, one = self._hidden()[call.number]
        one["function"]["arguments"] = call.arguments

    def answered(self, answers: Sequence[str], *, goes_on: bool) -> None:
        hidden = self._hidden()
        texts = [
            dumped({"role": "tool", "tool_call_id": call.get("id"), "content": answer})
            for (_, call), answer in zip(hidden, answers, strict=True)
        ]
        spans = {
            name: [self._starts.get(name, _size(value)), _size(value)] for name, value in self.fields.items()
        }
        calls = [[at, dumped(call)] for at, call in hidden]
        step = {"spans": spans, "calls": calls, "answers": texts, "goes_on": goes_on}
        self.steps.append(step if self._unsaid is None else step | {"unsaid": self._unsaid.value})
        self._forget()
        if goes_on:
            self._next_answer()

    def _next_answer(self) -> None:
        super()._next_answer()
        self._starts, self._stop, self._unsaid = {}, None, None

    @property
    def message(self) -> Json:
        """The message as the client has it."""
        calls = {"tool_calls": self._own} if self._own else {}
        return {"role": "assistant", "content": None, **self.fields, **calls}

    @property
    def has_hidden(self) -> bool:
        return bool(self.steps)

    def messages(self) -> list[str]:
        return [dumped(self.message)]


class _Whole(WholeReply, _ReplyMessage):
    """A reply that comes as one JSON value."""

    def _take(self, value: Any) -> None:
        [choice] = value["choices"]
        message, usage = choice["message"], value.get("usage") or {}
        calls = {at: dict(call) for at, call in enumerate(as_list(message.get("tool_calls")))}
        self.grow(message)
        self._stop, self._calls, self._usage = choice.get("finish_reason"), calls, usage
        self._was_hidden = self._was_hidden or bool(self._hidden())

    def _final(self, first: Json, value: Json) -> Json:
        [choice] = value["choices"]
        message = {**choice["message"], **self.message}
        if not self._own:
            message.pop("tool_calls", None)
        own = {"id": first.get("id"), "created": first.get("created")}
        usage = {"usage": self._all_usage()} if self._usage else {}
        choices = [{**choice, "message": message, "finish_reason": self._stop}]
        return {**value, **own, "choices": choices, **usage}


class _Streamed(StreamedReply, _ReplyMessage):
    """A reply that comes as a stream of chunks."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._first: Json | None = None
        # The last chunks, which wait until the provider has nothing more to say, as they came and read.
        self._held: list[tuple[bytes, Any]] = []
        # The number of the latest call at each index of the provider.
        self._numbers: dict[Any, int] = {}
        # By their number, the parts of the arguments of calls.
        self._arguments: defaultdict[int, list[str]] = defaultdict(list)

    def _ended(self) -> tuple[list[OwnCall], bool]:
        for number, call in self._calls.items():
            call["function"]["arguments"] = "".join(self._arguments[number])
        return super()._ended()

    def _begins_text(self, data: Any) -> bool:
        return bool(data["choices"][0]["delta"].get("content"))

    def _passed(self, event: bytes, chunk: Any) -> bytes:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            if not (_DONE in event and chunk is None):
                return event
            self._held.append((event, None))
            return b""
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choice = next(iter(chunk["choices"]), None)
        if choice is None:
            return self._without_choice(event, chunk)
        self._first = self._first or chunk
        changed = self._changed(chunk, choice)
        if self._held or choice.get("finish_reason"):
            # The usage may come behind the end, with a choice that has nothing.
            self._stop = choice.get("finish_reason") or self._stop
            self._held.append((event, changed))
            return b""
        if changed == chunk:
            return event
        return event_of(changed, is_named=False) if changed["choices"][0]["delta"] else b""

    def _without_choice(self, event: bytes, chunk: Json) -> bytes:
        """Hold the usage back, which comes last; Azure begins with the results of its filters."""
        if not self._held:
            return event if self._answers == 1 else b""
        self._held.append((event, chunk))
        return b""

    def _changed(self, chunk: Json, choice: Json) -> Json:
        """Return a chunk for the client."""
        delta = choice.get("delta") or {}
        passed = self.grow(delta)
        calls = [part for call in as_list(delta.get("tool_calls")) if (part := self._of_call(call))]
        if calls:
            passed["tool_calls"] = calls
        changed = {**chunk, "choices": [{**choice, "delta": passed}]}
        if self._answers > 1 and isinstance(chunk.get("usage"), dict):
            changed["usage"] = self._all_usage()
        if self._answers > 1 and self._first is not None:
            changed |= {name: self._first[name] for name in ("id", "created") if name in self._first}
        return changed

    def _of_call(self, part: Json) -> Json | None:
        """Add a part of a call; return it for the client, None if the call is hidden."""
        number, function = self._number_of(part), part.get("function") or {}
        if number not in self._indexes:
            hidden = self.is_hidden(part)
            self._was_hidden = self._was_hidden or hidden
            self._begin(number, is_hidden=hidden)
            self._calls[number] = {"id": part.get("id"), "type": "function", "function": {"arguments": ""}}
        call = self._calls[number]
        call |= {name: value for name, value in part.items() if name not in ("index", "function")}
        call["function"] |= {name: value for name, value in function.items() if name != "arguments"}
        self._arguments[number].append(function.get("arguments") or "")
        place = self._indexes[number]
        is_given = "index" in part or self._was_hidden
        return None if place is None else {**part, "index": place} if is_given else part

    def _number_of(self, part: Json) -> int:
        """Return the number of the call of a part; some servers give all calls one index, or none."""
        index, name = part.get("index", 0), (part.get("function") or {}).get("name")
        number = self._numbers.get(index)
        known = {} if number is None else self._calls[number]
        is_other = part.get("id") and known.get("id") and part["id"] != known["id"]
        is_named = "index" not in part and name and known and known["function"].get("name")
        if number is None or is_other or is_named:
            number = self._numbers[index] = len(self._calls)
        return number

    def _next_answer(self) -> None:
        super()._next_answer()
        self._held, self._numbers, self._arguments = [], {}, defaultdict(list)

    def close(self, *, is_stopped: bool) -> bytes:
        if not self._was_hidden:
            return b"".join(event for event, _ in self._held) + self._last
        usage = self._all_usage()
        has_text = self._ended_with(is_stopped=is_stopped) is not None
        ended = (
            event
            if chunk is None
            else event_of(self._ended_by(chunk, usage, has_text=has_text), is_named=False)
            for event, chunk in self._held
        )
        return b"".join(ended) + self._last

    def _ended_by(self, chunk: Json, usage: Json, *, has_text: bool) -> Json:
        first = self._first or {}
        own: Json = {name: first[name] for name in ("id", "created") if name in first}
        if isinstance(chunk.get("usage"), dict):
            own["usage"] = usage
        [*choices] = chunk["choices"]
        if has_text and choices and choices[0].get("finish_reason"):
            delta = {**(choices[0].get("delta") or {}), **self.stopped}
            choices = [{**choices[0], "delta": delta, "finish_reason": self._stop}]
        return {**chunk, **own, "choices": choices}

    def failed(self, error: Any) -> bytes:
        return event_of(error if "error" in error else {"error": error}, is_named=False)
