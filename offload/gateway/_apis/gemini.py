"""Calls of tools in the Gemini API, `generateContent` and `streamGenerateContent`, also of Vertex AI.

Clients repeat a reply in several ways: one content or one for each chunk of a stream, texts joined or as they
came, with thoughts or without. So a reply is rebuilt from steps that count characters, each a list with a
letter first: `x` a number of characters of text, and the signature behind them or None; `t` the same of
thoughts; `p` any other part that the client has, and `q` its call that got the signature of a hidden call
before it, since the first call of an answer must have one; `c` the text of a part with a hidden call; `a` the
answers to those before it, each with the number of the client's calls before its own, and `j` the same where
the client has calls in the same answer.
https://ai.google.dev/api/generate-content, https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import is_
from typing import Any

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
    summed,
    without_reminders,
)
from offload.gateway._events import Events, event_of
from offload.gateway._parsed import Parsed
from offload.gateway._spans import Edit, Place, Places, read
from offload.gateway._views import RESPONSES, as_list
from offload.messages.thinking import content_digest, thinking_key
from offload.reading.tools._definitions import Format

_CALL = ("functionCall", "function_call")
_SIGNATURE = ("thoughtSignature", "thought_signature")
_SCHEMAS = ("responseSchema", "response_schema", "responseJsonSchema", "response_json_schema")
# Fields of a part that has a text or nothing.
_OF_TEXT = {"text", "thought", *_SIGNATURE}
# Between the texts of two answers, which clients join; only the client gets it.
_BETWEEN = "\n\n"
_ENDED = "STOP"
_BEFORE_ELEMENT = b"[, \t\r\n"
_IN_TEXT, _OUTSIDE = re.compile(rb'\\.|"', re.DOTALL), re.compile(rb'["{}\[\]]')


class GeminiCalls(ApiCalls):
    """The Gemini API."""

    format: Format = "gemini"

    def without_tools(self, fields: Mapping[str, Any]) -> str | None:
        config = _get(fields, "generationConfig", "generation_config") or {}
        tools = _get(fields, "toolConfig", "tool_config") or {}
        calling = _get(tools, "functionCallingConfig", "function_calling_config") or {}
        if _get(config, "candidateCount", "candidate_count") not in (None, 1):
            return "requests for several replies"
        if _get(calling, "streamFunctionCallArguments", "stream_function_call_arguments"):
            return "requests for function calls that are streamed in parts"
        # Its tools are in the cache.
        is_cached = _get(fields, "cachedContent", "cached_content")
        return "requests with `cachedContent`" if is_cached else None

    def wants_document(self, fields: Mapping[str, Any]) -> bool:
        config = _get(fields, "generationConfig", "generation_config") or {}
        kind = _get(config, "responseMimeType", "response_mime_type")
        return kind not in (None, "text/plain") or _get(config, *_SCHEMAS) is not None

    def is_reply(self, message: Any) -> bool:
        return isinstance(message, dict) and message.get("role") == "model"

    def digest(self, messages: Sequence[Any]) -> str:
        said: list[Any] = []
        for message in messages:
            if not self.is_reply(message):
                said.append([content_digest(_without_repeated(without_reminders(message)))])
                continue
            for part in _parts(message):
                _say(said, part)
        runs = groupby(said, lambda one: isinstance(one, str))
        return digest_of([*chain.from_iterable(["".join(run)] if is_text else run for is_text, run in runs)])

    def marks(self, message: Any) -> list[str]:
        return [mark for part in _parts(message) for mark in _marks(part)]

    def reply(self, names: Collection[str], *, is_stream: bool) -> Reply:
        return _Streamed(names) if is_stream else _Whole(names)

    def put_back(
        self, places: Places, parsed: Parsed, at: int, steps: Sequence[Any], reply: str | None
    ) -> Iterator[Edit]:
        end = at
        while end < len(parsed.views) and self.is_reply(parsed.views[end]):
            end += 1
        self.check(parsed.views[at:end], reply)
        following = parsed.views[end] if end < len(parsed.views) else None
        results = [i for i, part in enumerate(_parts(following)) if _get(part, *RESPONSES) is not None]
        repeated = _Repeated([one for index in range(at, end) for one in _texts(places, parsed, index)])
        contents = ", ".join(_assembled(repeated, steps, joins=bool(results)))
        if end > at:
            yield Edit(parsed.starts[at], parsed.ends[end - 1], contents)
        else:
            yield Edit(parsed.starts[at], parsed.starts[at], f"{contents}, ")
        joined: list[tuple[int, str]] = next((step[1] for step in steps if step[0] == "j"), [])
        if results:
            ends = [places.find(parsed.starts[end], ("parts", index)) for index in results]
            yield from _joined(ends, joined)


def _joined(results: Sequence[Place], answers: Sequence[tuple[int, str]]) -> Iterator[Edit]:
    """Yield the changes that put answers between the client's results, in the order of the calls."""
    for number in range(len(results) + 1):
        texts = [text for before, text in answers if min(before, len(results)) == number]
        if texts and number < len(results):
            at = results[number].start
            yield Edit(at, at, "".join(f"{text}, " for text in texts))
        elif texts:
            at = results[-1].end
            yield Edit(at, at, "".join(f", {text}" for text in texts))


class _Repeated:
    """The parts of a reply as the client repeats it, each with its text, taken from the first on."""

    def __init__(self, parts: Sequence[tuple[Json, str]]) -> None:
        self._left = deque(parts)
        self._has_text = False
        self._is_next = False
        # Whether the next text was read without `_BETWEEN`: several answers may come before it.
        self._is_bare = False

    def next_answer(self) -> None:
        """Begin another answer, whose first text follows `_BETWEEN` if there is one before it."""
        self._is_next = self._has_text and not self._is_bare

    def characters(self, kind: str, size: int) -> list[tuple[Json, str]]:
        """Take so many characters of text, or of thoughts, which the client may have left out."""
        taken = self._characters(kind, size)
        if kind == "x" and size:
            self._has_text, self._is_bare = True, False
        return taken

    def _characters(self, kind: str, size: int) -> list[tuple[Json, str]]:
        taken: list[tuple[Json, str]] = []
        while self._left and _kind(self._first()[0]) == kind:
            part, text = self._first()
            said = part.get("text", "")
            if len(said) > size:
                if size:
                    taken.append(
                        _as_part({"text": said[:size]} | {n: True for n in ("thought",) if n in part})
                    )
                    self._left[0] = _as_part(part | {"text": said[size:]})
                return taken
            taken.append((part, text))
            self._left.popleft()
            size -= len(said)
        if size and kind == "x":
            raise ValueError("a text of the reply is gone")
        return taken

    def other(self) -> list[tuple[Json, str]]:
        """Take the next part of another kind, and the thoughts before it."""
        taken = []
        while self._left:
            taken.append(self._left.popleft())
            kind = _kind(taken[-1][0])
            if kind == "p":
                return taken
            if kind == "x" and taken[-1][0].get("text"):
                break
        raise ValueError("a part of the reply is gone")

    def rest(self) -> Iterator[tuple[Json, str]]:
        while self._left:
            yield self._first()
            self._left.popleft()

    def _first(self) -> tuple[Json, str]:
        part = self._left[0][0]
        if self._is_next and _kind(part) == "x" and part.get("text"):
            self._is_next, self._is_bare = False, True
            self._left[0] = _as_part(part | {"text": part["text"].removeprefix(_BETWEEN)})
        return self._left[0]


def _as_part(part: Json) -> tuple[Json, str]:
    return part, dumped(part)


def _assembled(repeated: _Repeated, steps: Sequence[Any], *, joins: bool) -> list[str]:
    """Return the contents that a reply goes together from; thoughts of earlier answers are left out."""
    contents: list[str] = []
    current: list[str] = []
    last = max((i for i, step in enumerate(steps) if step[0] == "a"), default=-1)
    for index, step in enumerate(steps):
        kind, goes_on = step[0], index < last
        if kind == "a":
            answers = [text for _, text in step[1]]
            contents += [_content("model", current), _content("user", answers)]
            current = []
            repeated.next_answer()
        elif kind in "xt":
            taken = repeated.characters(kind, step[1])
            if goes_on:
                current += _said_again(taken if kind == "x" else [], step[2])
            else:
                current += [text for _, text in taken]
        elif kind in "pq":
            taken = repeated.other()
            texts = [text for _, text in taken[-1:]] if goes_on else [text for _, text in taken]
            if kind == "q":
                texts[-1] = dumped({n: v for n, v in taken[-1][0].items() if n not in _SIGNATURE})
            current += texts
        elif kind == "c" and (goes_on or joins):
            current.append(step[1])
    current += [text for _, text in repeated.rest()]
    return [*contents, _content("model", current)] if current else contents


def _said_again(taken: Sequence[tuple[Json, str]], signature: str | None) -> list[str]:
    """Return one part with the characters of some, however the client cut them."""
    text = "".join(part.get("text", "") for part, _ in taken)
    part = {"text": text} | ({_SIGNATURE[0]: signature} if signature else {})
    return [dumped(part)] if text or signature else []


def _content(role: str, parts: Sequence[str]) -> str:
    return f'{{"role": "{role}", "parts": [{", ".join(parts)}]}}'


def _texts(places: Places, parsed: Parsed, at: int) -> Iterator[tuple[Json, str]]:
    """Yield the parts of a content, each with its text in the request."""
    for index, part in enumerate(as_list(parsed.views[at].get("parts"))):
        place = places.find(parsed.starts[at], ("parts", index))
        yield part, read(parsed.text[place.start : place.end])


def _get(holder: Any, *names: str) -> Any:
    """Return a field that has two spellings."""
    if not isinstance(holder, Mapping):
        return None
    return next((holder[name] for name in names if holder.get(name) is not None), None)


def _parts(message: Any) -> list[Json]:
    parts = message.get("parts") if isinstance(message, dict) else None
    return [part for part in as_list(parts) if isinstance(part, dict)]


def _without_repeated(message: Any) -> Any:
    """Return a content without parts that repeat those before them, as results of Gemini CLI on a resume."""
    if not isinstance(message, dict) or "parts" not in message:
        return message
    parts = as_list(message["parts"])
    return {
        **message,
        "parts": [one for before, one in zip([None, *parts], parts, strict=False) if one != before],
    }


def _kind(part: Json) -> str:
    """Return the step of a part."""
    if part.keys() <= _OF_TEXT:
        return "t" if part.get("thought") else "x"
    return "p"


def _marks(part: Json) -> Iterator[str]:
    call, signature = _get(part, *_CALL), _get(part, *_SIGNATURE)
    if isinstance(call, dict) and call.get("id"):
        yield str(call["id"])
    if signature:
        yield thinking_key(signature)


def _say(said: list[Any], part: Json) -> None:
    """Add what clients repeat of a part to a list."""
    kind, call = _kind(part), _get(part, *_CALL)
    if isinstance(call, dict):
        said.append([call.get("name"), call.get("args") or {}])
    elif kind == "p":
        said.append([content_digest({"content": [{n: v for n, v in part.items() if n not in _SIGNATURE}]})])
    elif kind == "x" and part.get("text"):
        said.append(part["text"])


class _Parts(SteppedReply):
    """The parts of a reply as they come, from one answer after another."""

    _ARGUMENTS, _CALLING = "args", _ENDED

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        # The signature of a hidden call that the next call of the client may need.
        self._lent: str | None = None
        # By the place in `steps`, what a hidden text came in, if in several parts.
        self._said_at: dict[int, list[str]] = {}
        # Where this answer begins in `steps`; whether its first text follows another one.
        self._start = 0
        self._has_text = self._is_next = False

    def _called(self, part: Json) -> Json | None:
        call = part.get(_CALL[0])
        return call if isinstance(call, dict) else None

    def _is_text(self, part: Json) -> bool:
        return _kind(part) == "x"

    def _hide(self, part: Json) -> None:
        """Hide a part; a text that came in several is one, so that `redact` sees it whole."""
        at = len(self.steps) - 1
        is_behind_one = bool(self._texts) and self._texts[-1][0] == at
        held = self._texts[-1][1] if is_behind_one and self._is_text(part) else {}
        if not held or held.get(_SIGNATURE[0]):
            super()._hide(part)
            return
        self._said_at.setdefault(at, [held["text"]]).append(part.get("text", ""))
        held |= {name: value for name, value in part.items() if name != "text"}

    def _ended(self) -> tuple[list[OwnCall], bool]:
        for at, part, _ in self._texts:
            if at in self._said_at:
                part["text"] = "".join(self._said_at[at])
                self.steps[at] = ["c", dumped(part)]
        self._said_at = {}
        return super()._ended()

    def shown(self, part: Json) -> Json | None:
        """Add a part; return it as the client gets it, None for a hidden call."""
        signature, kind = part.get(_SIGNATURE[0]), _kind(part)
        if self.is_hidden(part):
            if self._called(part) is not None:
                self._lent = self._lent or (None if self._own else signature)
            self._hide(part)
            return None
        if self._called(part) is not None:
            is_lent = self._lent is not None and not signature
            part = part | {_SIGNATURE[0]: self._lent} if is_lent else part
            self._lent = None
            self._own += 1
            self.steps.append(["q" if is_lent else "p"])
        elif kind == "p":
            self.steps.append([kind])
        else:
            part = self._said(kind, part, signature)
        self.visible.append(part)
        self.marks += _marks(part)
        return part

    def _said(self, kind: str, part: Json, signature: str | None) -> Json:
        """Count a text, and return the part for the client."""
        text = part.get("text") or ""
        before = self.steps[-1] if len(self.steps) > self._start else []
        if before[:1] == [kind] and before[2] is None:
            before[1:] = [before[1] + len(text), signature]
        elif text or signature:
            self.steps.append([kind, len(text), signature])
        if kind == "x" and text:
            self._has_text = True
            if self._is_next:
                self._is_next = False
                return part | {"text": _BETWEEN + text}
        return part

    def _answer(self, part: Json, own: int, answer: str) -> tuple[int, str]:
        call = part[_CALL[0]]
        same = {name: call[name] for name in ("id", "name") if name in call}
        return own, dumped({RESPONSES[0]: {**same, "response": {"output": answer}}})

    def _next_answer(self) -> None:
        super()._next_answer()
        self._lent = None
        self._start, self._is_next = len(self.steps), self._has_text

    def messages(self) -> list[str]:
        return [dumped({"role": "model", "parts": self.visible})]

    def _all_usage(self) -> Json:
        usage = summed(_by_kind(self._before), _by_kind(self._usage))
        return {n: [*v.values()] if isinstance(v, dict) else v for n, v in usage.items()}

    def _stop_here(self) -> None:
        self._forget()
        self._stop = "MAX_TOKENS" if self.is_document else _ENDED

    def _can_end(self) -> bool:
        # Clients leave thoughts out, and the provider takes no content without a part.
        return any(_kind(part) == "p" or (_kind(part) == "x" and part.get("text")) for part in self.visible)

    def _say(self, text: str) -> None:
        self.shown({"text": text})

    def _as_seen(self, value: Json, candidate: Json, parts: Sequence[Json], first: Json) -> Json:
        """Return an answer, or a chunk of one, with other parts."""
        content = {"role": "model", **(candidate.get("content") or {}), "parts": parts}
        return {**self._of_one_reply(value, first), "candidates": [{**candidate, "content": content}]}

    def _of_one_reply(self, value: Json, first: Json) -> Json:
        """Return an answer, or a chunk of one, with the id of the first one and the usage of all."""
        own: Json = {}
        if "responseId" in first:
            own["responseId"] = first["responseId"]
        if "usageMetadata" in value:
            own["usageMetadata"] = self._all_usage()
        return {**value, **own}


def _by_kind(usage: Json) -> Json:
    """Return a usage whose lists of counts by modality are tables, so that they can be added."""
    lists = {n: [one for one in v if isinstance(one, dict)] for n, v in usage.items() if isinstance(v, list)}
    return {**usage, **{n: {one.get("modality"): one for one in v} for n, v in lists.items()}}


class _Whole(WholeReply, _Parts):
    """A reply that comes as one JSON value."""

    def _take(self, value: Any) -> None:
        [candidate] = value["candidates"]
        parts = (candidate.get("content") or {}).get("parts") or []
        if not all(isinstance(part, dict) for part in parts):
            raise TypeError("parts of another form")
        usage = value.get("usageMetadata")
        self._usage = usage if isinstance(usage, dict) else {}
        self._stop = candidate.get("finishReason")
        for part in parts:
            self.shown(part)

    def _final(self, first: Json, value: Json) -> Json:
        [candidate] = value["candidates"]
        return self._as_seen(value, {**candidate, "finishReason": self._stop}, self.visible, first)


class _List(Events):
    """A stream that is an array of JSON values, cut where each ends."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._is_in_text = False
        self._has_any = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the elements that are complete, each with what is before it."""
        self.check_size()
        self._kept += data
        start, at = 0, self._searched
        while match := (_IN_TEXT if self._is_in_text else _OUTSIDE).search(self._kept, at):
            at = match.end()
            found = match[0]
            if found == b'"':
                self._is_in_text = not self._is_in_text
            elif not self._is_in_text:
                self._depth += 1 if found in (b"{", b"[") else -1
                if found == b"}" and self._depth == 1:
                    yield bytes(self._kept[start:at])
                    start = at
        # A backslash at the end needs the character behind it.
        is_cut = self._is_in_text and self._kept.endswith(b"\\") and len(self._kept) > at
        self._searched = len(self._kept) - is_cut - start
        del self._kept[:start]

    def rest(self) -> bytes:
        self._depth, self._is_in_text = 0, False
        return super().rest()

    def data(self, event: bytes) -> Any:
        return super().data(
            b"data:" + event.lstrip(_BEFORE_ELEMENT).replace(b"\n", b" ").replace(b"\r", b" ")
        )

    def passed(self, event: bytes) -> bytes:
        """Return an element for the client, unchanged if it can be at its place."""
        if event.lstrip().startswith(b"[") is self._has_any:
            return self._put(event.lstrip(_BEFORE_ELEMENT))
        self._has_any = True
        return event

    def written(self, value: Json) -> bytes:
        return self._put(event_of(value, is_named=False)[6:-2])

    def end(self) -> bytes:
        return b"\n]"

    def _put(self, element: bytes) -> bytes:
        before, self._has_any = b",\r\n" if self._has_any else b"[", True
        return before + element


class _Streamed(StreamedReply, _Parts):
    """A reply that comes as a stream of chunks, as events or as an array."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._has_begun = False
        self._first: Json | None = None
        # The chunk that ends an answer, which waits until the reply ends if more may have to be said.
        self._held: Json | None = None

    def feed(self, data: bytes) -> bytes:
        if not self._has_begun and (start := data.lstrip()):
            self._has_begun = True
            self._events = _List() if start.startswith(b"[") else self._events
        return super().feed(data)

    def _begins_text(self, data: Any) -> bool:
        return any(
            part.get("text") and self._is_text(part) for part in data["candidates"][0]["content"]["parts"]
        )

    def _passed(self, event: bytes, data: Any) -> bytes:
        usage = data.get("usageMetadata")
        if isinstance(usage, dict):
            self._usage = {**self._usage, **usage}
        self._first = self._first or data
        candidate = next(iter(data.get("candidates") or ()), None)
        if candidate is None:
            return b"" if self._hidden else self._without_candidate(event, data)
        parts = (candidate.get("content") or {}).get("parts") or []
        shown = [one for part in parts if (one := self.shown(part)) is not None]
        self._stop = candidate.get("finishReason") or self._stop
        if self._stop is not None and (self._hidden or (self._was_hidden and not self._can_end())):
            self._held = data
            candidate = {name: value for name, value in candidate.items() if name != "finishReason"}
        elif self._answers == 1 and len(shown) == len(parts) and all(map(is_, shown, parts)):
            return self._events.passed(event)
        if not shown and "finishReason" not in candidate:
            return b""
        return self._written(data, candidate, shown)

    def _without_candidate(self, event: bytes, data: Json) -> bytes:
        if self._answers == 1:
            return self._events.passed(event)
        return self._events.written(self._of_one_reply(data, self._first or data))

    def _written(self, data: Json, candidate: Json, parts: Sequence[Json]) -> bytes:
        # Clients take a chunk without parts for a broken one.
        return self._events.written(
            self._as_seen(data, candidate, parts or [{"text": ""}], self._first or data)
        )

    def _next_answer(self) -> None:
        super()._next_answer()
        self._held = None

    def close(self, *, is_stopped: bool) -> bytes:
        has_text = self._ended_with(is_stopped=is_stopped) is not None
        if self._held is None:
            return self._last
        held = self._held | ({"usageMetadata": self._usage} if self._usage else {})
        candidate = {**held["candidates"][0], "finishReason": self._stop}
        return self._written(held, candidate, self.visible[-1:] if has_text else []) + self._last

    def failed(self, error: Any) -> bytes:
        inner = error.get("error")
        if isinstance(inner, dict) and inner.get("code", 0) is None:
            # An error of the gateway: clients of this API read a number.
            error = {"error": {**inner, "code": 502, "status": "UNAVAILABLE"}}
        return self._events.written(error) + self._events.end()
