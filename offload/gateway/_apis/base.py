"""The protocol of an API in which the gateway answers calls of its own tools, and what APIs share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from offload.gateway._events import Events
from offload.gateway._parsed import Parsed
from offload.gateway._spans import Edit, Places
from offload.messages.thinking import signed_thinking, thinking_key
from offload.reading.tools._definitions import Format

Json = dict[str, Any]
# Claude Code reminds the model in any message; Gemini CLI begins with the date and the files of the folder.
_REMINDS = ("<system-reminder>", "<session_context>")
_REMINDER = re.compile(r"\s*<(system-reminder|session_context)>.*?</\1>\s*", re.DOTALL)
_MOST_OF_WHOLE = 128 * 1024 * 1024
# Fields of a block of text that the model does not read.
_OF_TEXT = {"type", "annotations", "logprobs", "cache_control"}
# Errors of looking for something in an answer of another form.
_OF_OTHER_FORM = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
# The text at the end of a reply that had to be ended between two calls.
STOPPED = "[offload: this reply read stored items too often and was ended]"
# The text of a reply that would else have nothing to be repeated.
CUT = "[offload: this reply ended while it read stored items]"


class OwnCall(NamedTuple):
    """A call of a retrieval tool by the model, or a text that the client does not get.

    It has its number among those of an answer, the tool, which is empty for a text, and the arguments, as an
    object or JSON, or the text.
    """

    number: int
    name: str
    arguments: Any


class ApiCalls(ABC):
    """An API: its requests, and the calls in its replies."""

    format: Format

    @abstractmethod
    def without_tools(self, fields: Mapping[str, Any]) -> str | None:
        """Return which requests get no tools if this is one of them: "requests …" in words, else None.

        The others have one reply, which the client alone keeps, and repeats in its next request.
        """

    def is_reply(self, message: Any) -> bool:
        """Return whether a message is the model's."""
        return isinstance(message, dict) and message.get("role") == "assistant"

    @abstractmethod
    def wants_document(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a request asks for a reply whose text is one document, as by a JSON schema."""

    @abstractmethod
    def digest(self, messages: Sequence[Any]) -> str:
        """Return a digest of what clients repeat of messages: not of marks, ids, empty fields and notices."""

    @abstractmethod
    def reply(self, names: Collection[str], *, is_stream: bool) -> Reply:
        """Return a reader of the answers to one request of a client; `names` are the tools to be hidden."""

    def check(self, messages: Sequence[Any], reply: str | None) -> None:
        """Raise `ValueError` unless messages have the digest `reply`; None is any."""
        if reply is not None and self.digest(messages) != reply:
            raise ValueError("the reply has changed")

    @abstractmethod
    def put_back(
        self, places: Places, parsed: Parsed, at: int, steps: Sequence[Any], reply: str | None
    ) -> Iterator[Edit]:
        """Yield the changes of a request that insert hidden calls into the reply that begins at a message.

        Args:
            places: the text of the request.
            parsed: it, read.
            at: index of the message.
            steps: the steps that rebuild the reply.
            reply: the digest that the reply must have; None is any.

        Raises:
            ValueError: the reply has changed.
        """

    def storable(self, steps: Sequence[Any], _may_store: Callable[[Any], bool]) -> list[Any]:
        """Return steps without texts that may not be stored, which the client repeats; most have none."""
        return [*steps]

    def loose(self, _messages: Sequence[Any]) -> Iterator[int]:
        """Yield the index of each message that the provider refuses without the one that it was made with."""
        yield from ()

    @abstractmethod
    def marks(self, message: Any) -> list[str]:
        """Return the signatures of thinking in a message, as digests, and the ids of its calls."""


class Reply(ABC):
    """The reply to a client: what the answers of the provider have in common, without hidden calls.

    Attributes:
        steps: the steps that rebuild it, for `ApiCalls.put_back`.
        marks: see `HiddenCalls`.
        unfounded: see `HiddenCalls`.
        is_whole: whether the provider ended it.
        is_document: whether its text is one document; then a text before a hidden call is hidden too.
        is_changed: whether one that is not a stream has other bytes than the provider's answer.
    """

    is_document = False

    # The field of a call with its arguments.
    _ARGUMENTS = "arguments"

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.steps: list[Any] = []
        self.marks: list[str] = []
        self.unfounded: list[str] = []
        self.is_whole = self.is_changed = False
        # The number of this answer; the usage of all before it, and of this one.
        self._answers = 1
        self._before: Json = {}
        self._usage: Json = {}
        # Whether any answer had hidden calls, also if they were left out.
        self._was_hidden = False
        # Whether this answer has any.
        self._hides = False
        # Whether the texts of this answer are no part of the document.
        self._hides_texts = False

    @property
    def usage(self) -> Json:
        """The usage of all answers, in the form of the provider."""
        return self._all_usage()

    @property
    @abstractmethod
    def has_hidden(self) -> bool:
        """Whether it has hidden calls that were answered."""

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Read a part of an answer; return what the client gets now."""

    @abstractmethod
    def end(self) -> tuple[list[OwnCall], bool]:
        """Read the end of an answer; return the hidden calls, and whether the client has calls of its own."""

    @abstractmethod
    def _ended(self) -> tuple[list[OwnCall], bool]:
        """Return the same once an answer was read."""

    @abstractmethod
    def _stop_here(self) -> None:
        """End the reply without the hidden calls of this answer."""

    @abstractmethod
    def _can_end(self) -> bool:
        """Return whether the provider takes the reply, as the client has it, in a later request."""

    @abstractmethod
    def _say(self, text: str) -> None:
        """Add a text to the reply."""

    def _ended_with(self, *, is_stopped: bool) -> str | None:
        """Return the text at the end of the reply that is not the model's; None if it needs none."""
        if is_stopped:
            self._stop_here()
        elif not self._was_hidden or self._can_end():
            return None
        text = STOPPED if is_stopped else CUT
        self._say(text)
        return text

    @abstractmethod
    def _called(self, part: Json) -> Json | None:
        """Return the object in a call that has its name and arguments; None for any other part."""

    def is_hidden(self, part: Json) -> bool:
        """Return whether a part is a call of a tool to be hidden."""
        called = self._called(part)
        return called is not None and called.get("name") in self._names

    def goes_on(self) -> bool:
        """Read the end of an answer; return whether all its calls are hidden, so that another one follows."""
        calls, has_own = self.end()
        return bool(calls) and not has_own

    def released(self) -> bytes:
        """Return what the client gets only at the end of an answer."""
        return b""

    def _calls_in(self, parts: Iterable[Json]) -> list[OwnCall]:
        found = filter(None, map(self._called, parts))
        return [
            OwnCall(number, str(called.get("name")), called.get(self._ARGUMENTS) or "{}")
            for number, called in enumerate(found)
        ]

    @abstractmethod
    def texts(self) -> list[OwnCall]:
        """Return the hidden texts of an answer."""

    @abstractmethod
    def rewritten(self, call: OwnCall) -> None:
        """Replace the arguments of a hidden call, or a hidden text."""

    @abstractmethod
    def answered(self, answers: Sequence[str], *, goes_on: bool) -> None:
        """Add the answers to the hidden calls; unless it `goes_on`, the client's own are answered next."""

    @abstractmethod
    def close(self, *, is_stopped: bool) -> bytes:
        """Return the rest for the client; `is_stopped` if the model called again and is not asked again."""

    @abstractmethod
    def failed(self, error: Any) -> bytes:
        """Return the rest for the client after an error of a later answer."""

    @abstractmethod
    def messages(self) -> list[str]:
        """Return the reply so far as a client repeats it: the JSON of its messages."""

    def _next_answer(self) -> None:
        self._answers += 1
        self._before = self._all_usage()
        self._usage, self.is_whole, self._hides, self._hides_texts = {}, False, False, False

    def _all_usage(self) -> Json:
        usage: Json = summed(self._before, self._usage)
        return usage


class SteppedReply(Reply):
    """A reply that goes together in steps, each a list with a letter first, which is `c` for a hidden call.

    Attributes:
        visible: the parts that the client has.
    """

    # The end reason of an answer whose calls wait for answers.
    _CALLING: str

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self.visible: list[Json] = []
        # The hidden calls of this answer: the place in `steps`, the part, the client's calls before it.
        self._hidden: list[tuple[int, Json, int]] = []
        # The hidden texts of this answer: the place in `steps`, the part, the object in it with the text.
        self._texts: list[tuple[int, Json, Json]] = []
        # The number of the client's calls in this answer, and what it ends with.
        self._own = 0
        self._stop: Any = None

    @abstractmethod
    def _is_text(self, part: Json) -> bool:
        """Return whether a part is a text."""

    def is_hidden(self, part: Json) -> bool:
        """Return whether a part is a call of a tool to be hidden, or a text to be hidden."""
        return super().is_hidden(part) or (self._hides_texts and self._is_text(part))

    @abstractmethod
    def _answer(self, part: Json, own: int, answer: str) -> Any:
        """Return what a step has of the answer to a hidden call."""

    def _texts_in(self, part: Json) -> Iterable[Json]:
        """Return the objects in a part whose field `text` is a text."""
        return [part] if isinstance(part.get("text"), str) else []

    def _hide(self, part: Json) -> None:
        self._was_hidden = self._hides = True
        at = len(self.steps)
        if self._called(part) is None:
            self._texts += [(at, part, holder) for holder in self._texts_in(part)]
        else:
            self._hidden.append((at, part, self._own))
        self.steps.append(["c", dumped(part)])

    def _ended(self) -> tuple[list[OwnCall], bool]:
        self.is_whole = self._stop is not None
        if self._stop != self._CALLING:
            self._forget()
        return self._calls_in(part for _, part, _ in self._hidden), self._own > 0

    def _forget(self) -> None:
        """Leave hidden calls out that nobody answers, and the texts before them."""
        for at in sorted({at for at, *_ in (*self._hidden, *self._texts)}, reverse=True):
            del self.steps[at]
        self._hidden, self._texts, self._hides_texts = [], [], False

    def texts(self) -> list[OwnCall]:
        return [OwnCall(number, "", holder["text"]) for number, (_, _, holder) in enumerate(self._texts)]

    def rewritten(self, call: OwnCall) -> None:
        if call.name:
            at, part, _ = self._hidden[call.number]
            (self._called(part) or {})[self._ARGUMENTS] = call.arguments
        else:
            at, part, holder = self._texts[call.number]
            holder["text"] = call.arguments
        self.steps[at] = ["c", dumped(part)]

    def answered(self, answers: Sequence[str], *, goes_on: bool) -> None:
        pairs = zip(self._hidden, answers, strict=True)
        texts = [self._answer(part, own, answer) for (_, part, own), answer in pairs]
        self.steps.append(["a" if goes_on else "j", texts])
        self._hidden, self._texts = [], []
        if goes_on:
            self._next_answer()

    def _next_answer(self) -> None:
        super()._next_answer()
        self._own, self._stop = 0, None

    @property
    def has_hidden(self) -> bool:
        return any(step[0] == "c" for step in self.steps)


class WholeReply(Reply):
    """A reply that comes as one JSON value."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._parts: list[bytes] = []
        self._size = 0
        # The values of the first answer and of this one.
        self._first: Json | None = None
        self._value: Json | None = None

    @abstractmethod
    def _take(self, value: Any) -> None:
        """Read an answer. Raises any error of a look-up for one of another form."""

    @abstractmethod
    def _final(self, first: Json, value: Json) -> Json:
        """Return the reply as the client gets it."""

    def feed(self, data: bytes) -> bytes:
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MOST_OF_WHOLE:
            raise ValueError(f"an answer of the provider has more than {_MOST_OF_WHOLE} bytes")
        return b""

    def end(self) -> tuple[list[OwnCall], bool]:
        self._value, body = None, b"".join(self._parts)
        if self.is_document:
            probe = type(self)(self._names)
            probe.feed(body)
            self._hides_texts = probe.goes_on()
        try:
            value = json.loads(body)
            self._take(value)
        except _OF_OTHER_FORM:
            return [], False
        self._value = value
        self._first = self._first or value
        return self._ended()

    def _next_answer(self) -> None:
        super()._next_answer()
        self._parts, self._size = [], 0

    def close(self, *, is_stopped: bool) -> bytes:
        """Return the whole reply if it is changed."""
        if self._first is None or self._value is None or not self._was_hidden:
            return b""
        self.is_changed = True
        self._ended_with(is_stopped=is_stopped)
        return json.dumps(self._final(self._first, self._value)).encode()

    def failed(self, _error: Any) -> bytes:
        """Return nothing: the client gets the error as it is."""
        return b""


class StreamedReply(Reply):
    """A reply that comes as a stream of events."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._events = Events()
        # The bytes after the last event, and the events that wait until the provider has nothing more to say.
        self._last = b""
        # The client's index of the next part, and by the provider's those of this answer, None if hidden.
        self._next = 0
        self._indexes: dict[Any, int | None] = {}
        # Of a document: this answer read ahead, and its events from the first text on.
        self._ahead: StreamedReply | None = None
        self._waiting: list[bytes] = []

    @abstractmethod
    def _begins_text(self, data: Any) -> bool:
        """Return whether a text begins with an event, or is in it. Raises any error of a look-up."""

    @abstractmethod
    def _passed(self, event: bytes, data: Any) -> bytes:
        """Return what the client gets of an event now."""

    def _begin(self, index: Any, *, is_hidden: bool) -> None:
        """Give the part that begins its index for the client."""
        self._hides = self._hides or is_hidden
        self._indexes[index] = None if is_hidden else self._next
        self._next += not is_hidden

    def feed(self, data: bytes) -> bytes:
        """Read events; return what the client gets of them now: those that cannot be read pass."""
        if self.is_document:
            self._ahead = self._ahead or type(self)(self._names)
            self._ahead.feed(data)
        return b"".join(map(self._now, self._events.feed(data)))

    def _now(self, event: bytes) -> bytes:
        """Return what the client gets of an event now: nothing of a document before its answer ends."""
        with suppress(*_OF_OTHER_FORM):
            if self._waiting or (self.is_document and self._begins_text(self._events.data(event))):
                self._waiting.append(event)
                return b""
        return self._read(event)

    def _read(self, event: bytes) -> bytes:
        try:
            return self._passed(event, self._events.data(event))
        except _OF_OTHER_FORM:
            return self._events.passed(event)

    def released(self) -> bytes:
        """Return the events from the first text of a document on, without texts if another answer follows."""
        self._hides_texts = self._ahead is not None and self._ahead.goes_on()
        waiting, self._waiting = self._waiting, []
        return b"".join(map(self._read, waiting))

    def end(self) -> tuple[list[OwnCall], bool]:
        """Read the end of an answer. Raises `ValueError` if that is amid what the client does not get."""
        self._last += self._events.rest()
        ended = self._ended()
        if self._hides and not self.is_whole:
            raise ValueError("its stream ended in a call of the gateway")
        return ended

    def _next_answer(self) -> None:
        super()._next_answer()
        self._last, self._indexes, self._ahead = b"", {}, None


def is_notice(message: Any) -> bool:
    """Return whether a message is the client's own text, which it may word differently later."""
    return isinstance(message, Mapping) and message.get("role") in ("system", "developer")


def is_text_alone(message: Any) -> bool:
    """Return whether a message has neither calls nor thinking, so that a client may have written it."""
    if not isinstance(message, Mapping) or "role" not in message or signed_thinking(message):
        return False
    if message.get("tool_calls") or message.get("function_call"):
        return False
    content = message.get("content", message.get("parts"))
    blocks = content if isinstance(content, list) else [{"text": content}]
    return all(isinstance(block, Mapping) and block.keys() - _OF_TEXT == {"text"} for block in blocks)


def without_reminders(value: Any) -> Any:
    """Return a message of a client without reminders, which it may word differently later."""
    if isinstance(value, str):
        return _REMINDER.sub("", value) if any(tag in value for tag in _REMINDS) else value
    if isinstance(value, dict):
        return {name: without_reminders(part) for name, part in value.items()}
    if isinstance(value, list):
        kept = map(without_reminders, value)
        return [part for part in kept if not (isinstance(part, dict) and part.get("text") == "")]
    return value


def digest_of(value: Any) -> str:
    """Return a digest of a JSON value."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def summed(one: Any, other: Any) -> Any:
    """Return two usages as one: numbers are added, lists joined, and of all else the second counts."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {**one, **{name: summed(one.get(name), value) for name, value in other.items()}}
    is_number = all(isinstance(n, int | float) and not isinstance(n, bool) for n in (one, other))
    if is_number or (isinstance(one, list) and isinstance(other, list)):
        return one + other
    return one if other is None else other


def key_of_thinking(block: Mapping[str, Any], *fields: str) -> str:
    """Return the digest of the first field of some thinking that has a value."""
    return thinking_key(next((block[name] for name in fields if block.get(name)), ""))


def dumped(value: Any) -> str:
    """Return the JSON of a value that is put into a request."""
    return json.dumps(value)
