"""Requests of four APIs, read: their messages as the engine sees them, and the places of all in the text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from offload.base.schema import seconds_of
from offload.gateway._incoming import Api
from offload.gateway._spans import BodyReader, Edit, Path, Places, common, text_of
from offload.gateway._views import RESPONSES, as_list, prepared
from offload.messages.formats import role_or_none
from offload.messages.marks import marks_of
from offload.messages.thinking import signed_thinking

READ_BACK = "context_read"
# Conversations that a client does not name, whose latest requests are compared with the next one.
MOST_ALIKE = 4
# The tools in one of Gemini's tools; it has two spellings.
_DECLARED = ("functionDeclarations", "function_declarations")
# Of the Responses and Interactions APIs: the rest of the conversation is with the provider.
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "previous_interaction_id")
# Of the Messages API: a thread begins with the whole conversation; later requests have its new messages.
_THREAD, _CREATE, _CONTINUE = "thread", "create", "continue"
_OF_THREAD = ("system", "tools")
# The type of an item of the Responses API that has tools.
_ADDED_TOOLS = "additional_tools"
# In a message with a tool result, one for each API.
_OF_RESULTS = (
    *('"tool_result"', '"tool_call_id"', '_call_output"', '"function_result"'),
    *(f'"{name}"' for name in RESPONSES),
)


class ElsewhereError(Exception):
    """The rest of the conversation is with the provider, and its beginning was not seen here."""


class ProviderThread(NamedTuple):
    """A conversation that the provider keeps, up to a reply.

    Attributes:
        name: that of the conversation.
        views: its messages as the engine sees them.
        fields: the fields of its first request that later ones leave out.
    """

    name: str
    views: Sequence[Any]
    fields: Mapping[str, Any]


@dataclass(slots=True)
class Parsed:
    """A request, read.

    Attributes:
        text: its body, see `text_of`.
        fields: by name, all values but the messages, and `spans` where they start and end in the text.
        first: index of the first message in the text; those before it are in the thread `kept`.
        views: the messages as the engine sees them; those at the end that the model wrote are left out.
        starts: where each message starts in the text; `ends` is where it ends.
        adding: the messages that have tools, and `signed` the replies with signed thinking, by index.
        tails: by message and path, the end of a text that the engine does not see; and the cache mark of a
            block in a result, as JSON.
        edits: by message, what the engine returned for it last and the changes of the text for that.
        kept_for: how many seconds the provider is asked to keep it in its cache; None is as usual.
        left_out: digests of thinking that was made behind hidden calls which are gone.
        compacts: whether its reply is a shorter conversation, see `Api`.
    """

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    views: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    adding: list[int] = field(default_factory=list)
    signed: list[int] = field(default_factory=list)
    tails: dict[tuple[int, Path], str] = field(default_factory=dict)
    edits: dict[int, tuple[Any, list[Edit]]] = field(default_factory=dict)
    kept_for: int | None = None
    first: int = 0
    kept: ProviderThread | None = None
    left_out: frozenset[str] = frozenset()
    compacts: bool = False

    @property
    def is_aside(self) -> bool:
        """Whether it is not the next request of its conversation, but one for a summary or without tools."""
        return self.compacts or not self.tool_names

    @property
    def has_results(self) -> bool:
        """Whether it is of a conversation in which the model called tools."""
        return self.last_reply >= 0 and any(map(self.text.__contains__, _OF_RESULTS))

    @property
    def is_threaded(self) -> bool:
        """Whether the provider keeps what this request sends, so that later ones cannot change it."""
        return self.kept is not None or _kind_of_thread(self.fields) == _CREATE

    def continued(self, name: str, reply: Any) -> ProviderThread:
        """Return the thread that the next request may continue behind a reply."""
        fields = {field: self.fields[field] for field in _OF_THREAD if field in self.fields}
        return ProviderThread(name, [*self.views, reply], fields)

    @property
    def tools(self) -> list[Any]:
        """Its tools, also those that are in a message."""
        lists = [self.fields.get("tools"), *(self.views[index]["tools"] for index in self.adding)]
        return [tool for tools in lists for tool in as_list(tools)]

    @property
    def tool_names(self) -> list[str]:
        """The names of its tools, also of those that are in a message or in a namespace."""
        return [name for tool in self.tools for name in _tool_names(tool)]

    def end_of_tools(self) -> int:
        """Return the place behind the last tool in the first list of tools that has any."""
        places = Places(self.text)
        if tools := as_list(self.fields.get("tools")):
            start, end = self.spans["tools"]
            declared = ((i, name) for i, tool in enumerate(tools) for name in _DECLARED if _has(tool, name))
            path = next(declared, None)
            return (end if path is None else places.find(start, path).end) - 1
        index = next(index for index in self.adding if as_list(self.views[index]["tools"]))
        return places.find(self.starts[index], ("tools",)).end - 1

    @property
    def can_read_back(self) -> bool:
        """Whether the model has a tool to read back what was replaced."""
        return any(name.endswith(READ_BACK) for name in self.tool_names)

    @property
    def model(self) -> str | None:
        model = self.fields.get("model")
        return model if isinstance(model, str) else None

    @property
    def drops_thinking(self) -> bool:
        """Whether the client lets the provider drop thinking that is bound to other messages."""
        thinking = self.fields.get("thinking")
        binding = thinking.get("block_binding") if isinstance(thinking, dict) else None
        return isinstance(binding, dict) and "drop_block" in binding.values()

    @property
    def first_reply(self) -> int:
        """Index of the first message that the model wrote; the number of messages without one."""
        roles = map(role_or_none, self.views)
        return next((i for i, role in enumerate(roles) if role == "assistant"), len(self.views))

    @property
    def last_reply(self) -> int:
        """Index of the last message that the model wrote, -1 without one."""
        count = len(self.views)
        return next((i for i in reversed(range(count)) if role_or_none(self.views[i]) == "assistant"), -1)


def read_request(
    body: bytes, api: Api, befores: Sequence[Parsed] = (), threads: Mapping[str, ProviderThread] | None = None
) -> Parsed | None:
    """Return the request in `body`, None if nothing in it can be replaced: no messages, or nothing of tools.

    Messages at the beginning that have the same text in one of the requests `befores` are not read again.
    Those of the thread that it continues, one of `threads` by the id of its last reply, come before its own.
    Raises `ElsewhereError` if the conversation is kept elsewhere, and `ValueError` for anything but a JSON
    object in UTF-8 without repeated fields.
    """
    text = text_of(body)
    parsed, known = parse(text, api, nearest_to(text, [before for before in befores if not before.first]))
    while parsed.views and role_or_none(parsed.views[-1]) == "assistant":
        del parsed.views[-1]
    if is_kept_elsewhere(parsed.fields):
        raise ElsewhereError
    if _kind_of_thread(parsed.fields) == _CONTINUE:
        thread = (threads or {}).get(str(parsed.fields[_THREAD].get("previous_message_id")))
        if thread is None:
            raise ElsewhereError
        known = _take_thread(parsed, thread)
    if not parsed.views or not (parsed.tool_names or parsed.has_results):
        return None
    parsed.kept_for = max(_lifetimes(parsed), default=None)
    for index in range(known, len(parsed.views)):
        view = parsed.views[index]
        parsed.tails |= {(index, path): tail for path, tail in prepared(view) if tail}
        if role_or_none(view) == "assistant" and signed_thinking(view):
            parsed.signed.append(index)
    return parsed


def is_kept_elsewhere(fields: Mapping[str, Any]) -> bool:
    """Return whether the beginning of a conversation is with the provider alone."""
    return any(fields.get(name) for name in _KEPT_ELSEWHERE)


def _kind_of_thread(fields: Mapping[str, Any]) -> str | None:
    thread = fields.get(_THREAD)
    kind = thread.get("type") if isinstance(thread, dict) else None
    return kind if isinstance(kind, str) else None


def _take_thread(parsed: Parsed, thread: ProviderThread) -> int:
    """Put the messages of a thread before those of a request, and return their number."""
    count = len(thread.views)
    parsed.kept, parsed.first = thread, count
    parsed.views = [*thread.views, *parsed.views]
    parsed.starts, parsed.ends = [0] * count + parsed.starts, [0] * count + parsed.ends
    parsed.adding = [count + index for index in parsed.adding]
    parsed.fields = {**thread.fields, **parsed.fields}
    return count


def _lifetimes(parsed: Parsed) -> Iterator[int]:
    """Yield the seconds that a request asks for: by the marks at its end, else by those of the system."""
    system = as_list(parsed.fields.get("system"))
    marks = [*marks_of(parsed.fields).values(), *_marks(parsed.views[-1])] or [*chain(*map(_marks, system))]
    for mark in (*marks, parsed.fields.get("prompt_cache_options")):
        lifetime = mark.get("ttl") if isinstance(mark, dict) else None
        with suppress(ValueError):
            if isinstance(lifetime, str):
                yield seconds_of(lifetime)


def _marks(holder: Any) -> Iterator[Any]:
    """Yield the cache marks of a message or a block, and of the blocks in it."""
    if isinstance(holder, dict):
        yield from marks_of(holder).values()
        for block in as_list(holder.get("content")):
            yield from _marks(block)


def nearest_to(text: str, befores: Sequence[Parsed]) -> Parsed | None:
    """Return the request that has most in common with a text at the beginning, None without any."""
    if len(befores) > 1:
        return max(befores, key=lambda before: common(text, before.text))
    return next(iter(befores), None)


def parse(text: str, api: Api, before: Parsed | None) -> tuple[Parsed, int]:
    """Return a request with all its messages, and how many are those of the request `before`.

    Raises `ValueError` for anything but a JSON object without repeated fields.
    """
    parsed, reader = Parsed(text, compacts=api.compacts), BodyReader(text)
    known = 0
    if reader.kind() != "object":
        raise ValueError("expected an object")
    for name in map(str, reader.members()):
        if name in parsed.fields:
            raise ValueError(f"the field {name!r:.40} comes twice")
        start = reader.place
        if name == api.messages and text.startswith("[", start):
            parsed.fields[name] = None
            known = 0 if before is None else _take_known(parsed, before)
            _read_messages(parsed, reader)
        else:
            parsed.fields[name] = _field(text, reader, name, before)
        parsed.spans[name] = start, reader.place
    if reader.peek():
        raise ValueError(f"more than one JSON value, at character {reader.place}")
    parsed.fields |= {} if api.model is None else {"model": api.model}
    return parsed, known


def _read_messages(parsed: Parsed, reader: BodyReader) -> None:
    """Read the messages that are not known."""
    messages = reader.members()
    if parsed.ends:
        next(messages)
        reader.move(parsed.ends[-1])
    for index, _ in enumerate(messages, len(parsed.ends)):
        parsed.starts.append(reader.place)
        view = reader.value()
        parsed.views.append(view)
        parsed.ends.append(reader.place)
        # Codex sends tools so for models since GPT-6.
        if isinstance(view, dict) and view.get("type") == _ADDED_TOOLS and "tools" in view:
            parsed.adding.append(index)


def _field(text: str, reader: BodyReader, name: str, before: Parsed | None) -> Any:
    """Read the value of a field, which may be as long as the tools; one with the same text is known."""
    if before is not None and name in before.spans:
        start, end = before.spans[name]
        same = before.text[start:end]
        # All other values may be longer in the request than the same text.
        if same.startswith(("[", "{")) and text.startswith(same, reader.place):
            reader.move(reader.place + len(same))
            return before.fields[name]
    return reader.value()


def _take_known(parsed: Parsed, before: Parsed) -> int:
    """Take the messages that both texts begin with, but the last of `before`; return their number."""
    same = common(parsed.text, before.text)
    # The character after a message is the same too: a number may be longer.
    known = min(bisect_left(before.ends, same), len(before.views) - 1)
    parsed.views, parsed.starts = before.views[:known], before.starts[:known]
    parsed.ends = before.ends[:known]
    parsed.adding = [index for index in before.adding if index < known]
    parsed.signed = [index for index in before.signed if index < known]
    parsed.tails = {key: tail for key, tail in before.tails.items() if key[0] < known}
    parsed.edits = {index: made for index, made in dict(before.edits).items() if index < known}
    return known


def _tool_names(tool: Any) -> Iterator[str]:
    """Return the name of a tool, or those of the tools in a namespace or of Gemini's functions."""
    is_namespace = isinstance(tool, dict) and tool.get("type") == "namespace"
    inner = next((as_list(tool[name]) for name in _DECLARED if _has(tool, name)), [tool])
    return filter(None, map(_tool_name, as_list(tool.get("tools")) if is_namespace else inner))


def _has(tool: Any, name: str) -> bool:
    return isinstance(tool, dict) and bool(as_list(tool.get(name)))


def _tool_name(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name") or tool.get("type")
    return name if isinstance(name, str) else None
