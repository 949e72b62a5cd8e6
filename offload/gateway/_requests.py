"""Requests of four APIs: their messages as the engine sees them, and the changes of their bytes.

The engine gets a view of each message, without what must be kept: cache marks, reminders that a client put
into a text, results with references to tools, and texts that are placeholders or a client's notices already.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import compress, count
from operator import getitem, is_not, itemgetter
from typing import Any, NamedTuple

from offload.gateway._spans import BodyReader, Edit, Path, Places, body_of, common, read, replaced, text_of
from offload.messages.base import Block
from offload.messages.formats import role_or_none, scan_of
from offload.messages.marks import marks_of, without_marks
from offload.messages.reports import reports_in
from offload.messages.thinking import signed_thinking
from offload.placeholder.forms import known_refs


class Api(NamedTuple):
    """An API of a model.

    Attributes:
        end: the end of its path.
        messages: the field of a request with the messages.
        cache: the name of the prices of its prompt cache, if the settings have none.
        streams: whether each reply is a stream, in any form.
        signs_calls: whether a call has a signature, which may be of its arguments.
        model: the model, if the path names it.
    """

    name: str
    end: str
    messages: str
    cache: str
    streams: bool = False
    signs_calls: bool = False
    model: str | None = None


APIS = (
    Api("Anthropic Messages", "/v1/messages", "messages", "anthropic"),
    Api("OpenAI chat", "/chat/completions", "messages", "openai"),
    Api("OpenAI Responses", "/responses", "input", "openai"),
    Api("Gemini", ":generateContent", "contents", "gemini", signs_calls=True),
    Api("Gemini", ":streamGenerateContent", "contents", "gemini", streams=True, signs_calls=True),
)


class Received(NamedTuple):
    """A request of a client before it is read.

    Attributes:
        session: the session with the records of its conversation.
        left_out: digests of thinking that cannot be sent any more.
        lacks_tools: whether it cannot get the tools of the gateway, which its conversation began with.
    """

    session: str
    api: Api
    headers: Mapping[str, str]
    body: bytes
    left_out: frozenset[str] = frozenset()
    lacks_tools: bool = False

    @property
    def hint(self) -> tuple[str | None, ...]:
        """A key that the unread requests of one conversation of a session have in common."""
        names = (*_SESSION_HEADERS, _AGENT_HEADER)
        return (self.session, self.api.name, *map(self.headers.get, names))


# Behind the path of a request, to count its tokens; the provider checks its thinking too.
COUNT = "/count_tokens"
READ_BACK = "context_read"
# Seconds that a request waits for the store by default if only that knows what was sent before.
MAX_WAIT = 30.0
# Headers that name a session, and the header of a subagent in it.
_SESSION_HEADERS = ("x-claude-code-session-id", "thread-id", "session-id", "session_id", "x-session-affinity")
_AGENT_HEADER = "x-claude-code-agent-id"
_INSTRUCTIONS = ("instructions", "systemInstruction", "system_instruction")
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"
_RESULT_ROLES, _OUTPUT = ("tool", "function"), "_call_output"
# Gemini's part with a result, and the tools in one of its tools; each has two spellings.
_RESPONSES, _DECLARED = (
    ("functionResponse", "function_response"),
    ("functionDeclarations", "function_declarations"),
)
_RETURNED = [(name, "response") for name in _RESPONSES]
_CLIENT_ROLES = ("user", "system", "developer")
_MOST_REMINDERS = 50
_PLACEHOLDER_CHARS = 30_000
# Notices of Claude Code in place of an output that it cut: they name the file with the whole of it.
_CUT = re.compile(
    r".{0,2000}<persisted-output>.*</persisted-output>"
    r"|(?:Error: )?result \([\d,]+ characters.{0,200}exceeds maximum allowed tokens.*saved to ",
    re.DOTALL,
)
_NOTICE_CHARS = 8_000
# The last step of the path to the marks of the cache that a text block in a result had.
_MARKS = "marks"
# Of the Responses API: the rest of the conversation is with the provider.
_KEPT_ELSEWHERE = ("previous_response_id", "conversation")
# Of the Messages API: a thread begins with the whole conversation; later requests have its new messages.
_THREAD, _CREATE, _CONTINUE = "thread", "create", "continue"
_OF_THREAD = ("system", "tools")
# The type of an item of the Responses API that has tools.
_ADDED_TOOLS = "additional_tools"
_KEPT = {"type": "kept"}


def api_of(path: str) -> Api | None:
    """Return the API of a path by its end."""
    api = next((api for api in APIS if path.endswith(api.end)), None)
    if api is None or not api.end.startswith(":"):
        return api
    return api._replace(model=path.removesuffix(api.end).rpartition("/")[2])


class ElsewhereError(Exception):
    """The rest of the conversation is with the provider, and its beginning was not seen here."""


class NotRecalledError(Exception):
    """The store did not say in time what was sent before of a conversation under way."""


class Thread(NamedTuple):
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
class Request:
    """A request with tools, read.

    Attributes:
        text: its body, see `text_of`.
        fields: by name, all values but the messages, and `spans` where they start and end in the text.
        first: index of the first message in the text; those before it are in the thread `thread`.
        views: the messages as the engine sees them; those at the end that the model wrote are left out.
        starts: where each message starts in the text; `ends` is where it ends.
        adding: the messages that have tools, and `signed` the replies with signed thinking, by index.
        tails: by message and path, the end of a text that the engine does not see; and the cache mark of a
            block in a result, as JSON.
        edits: by message, what the engine returned for it last and the changes of the text for that.
        sent: by message, the changes of the text that is sent.
        problems: why messages were kept that the engine changed.
        lasts_an_hour: whether a cache mark asks for an hour, which has another price.
        left_out: digests of thinking that was made behind hidden calls which are gone.
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
    sent: dict[int, list[Edit]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lasts_an_hour: bool = False
    first: int = 0
    thread: Thread | None = None
    left_out: frozenset[str] = frozenset()

    @property
    def is_threaded(self) -> bool:
        """Whether the provider keeps what this request sends, so that later ones cannot change it."""
        return self.thread is not None or _kind_of_thread(self.fields) == _CREATE

    def continued(self, name: str, reply: Any) -> Thread:
        """Return the thread that the next request may continue behind a reply."""
        fields = {field: self.fields[field] for field in _OF_THREAD if field in self.fields}
        return Thread(name, [*self.views, reply], fields)

    @property
    def tool_names(self) -> list[str]:
        """The names of its tools, also of those that are in a message or in a namespace."""
        lists = [self.fields.get("tools"), *(self.views[index]["tools"] for index in self.adding)]
        return [name for tools in lists for tool in _blocks(tools) for name in _tool_names(tool)]

    def end_of_tools(self) -> int:
        """Return the place behind the last tool in the first list of tools that has any."""
        places = Places(self.text)
        if tools := _blocks(self.fields.get("tools")):
            start, end = self.spans["tools"]
            declared = ((i, name) for i, tool in enumerate(tools) for name in _DECLARED if _has(tool, name))
            path = next(declared, None)
            return (end if path is None else places.find(start, path).end) - 1
        index = next(index for index in self.adding if _blocks(self.views[index]["tools"]))
        return places.find(self.starts[index], ("tools",)).end - 1

    @property
    def can_read_back(self) -> bool:
        """Whether the model has a tool to read back what was replaced."""
        return any(name.endswith(READ_BACK) for name in self.tool_names)

    @property
    def model(self) -> str | None:
        """The model that the client asks for."""
        model = self.fields.get("model")
        return model if isinstance(model, str) else None

    @property
    def drops_thinking(self) -> bool:
        """Whether the client lets the provider drop thinking that is bound to other messages."""
        thinking = self.fields.get("thinking")
        binding = thinking.get("block_binding") if isinstance(thinking, dict) else None
        return isinstance(binding, dict) and "drop_block" in binding.values()

    @property
    def last_reply(self) -> int:
        """Index of the last message that the model wrote, -1 without one."""
        count = len(self.views)
        return next((i for i in reversed(range(count)) if role_or_none(self.views[i]) == "assistant"), -1)

    def held_back(self, messages: Sequence[Any], items: Collection[tuple[int, Block]]) -> list[Any]:
        """Return what the engine returned for the views, with some items whole, by message and block."""
        held = list(messages)
        for index in {message for message, _ in items}:
            view = self.views[index]
            with suppress(ValueError):  # `with_messages` says it.
                changes = [c for c in _changes(view, held[index]) if not _is_in(items, index, c[0])]
                held[index] = _changed(view, changes) if changes else view
        return held

    @property
    def is_changed(self) -> bool:
        """Whether `with_messages` returned another body than that of the client."""
        return any(self.sent.values())

    def with_messages(self, messages: Sequence[Any]) -> bytes:
        """Return the body with the changes of the engine in the views `messages`.

        A message that cannot be changed is kept, and `problems` says why.
        """
        if len(messages) != len(self.views):
            raise ValueError("other messages than those of the request")
        self.sent = {}
        places = Places(self.text)
        for index in changed(self.views, messages):
            if index < self.first:
                continue
            view, new = self.views[index], messages[index]
            known, made = self.edits.get(index, (None, []))
            try:
                if known is not new:
                    made = [*self._edits_of(places, index, view, new)]
                    self.edits[index] = new, made
                self.sent[index] = made
            except ValueError:
                # The text of the error may quote the message.
                self.problems.append("a message cannot be changed")
        edits = [edit for made in self.sent.values() for edit in made]
        return body_of(replaced(self.text, edits))

    def _edits_of(self, places: Places, index: int, view: Any, new: Any) -> Iterator[Edit]:
        if role_or_none(view) == "assistant":
            yield from self._reply_edits(places, index, view, new)
            return
        changes = [change for change in _changes(view, new) if _is_replaceable(view, change[0])]
        marks = self._moved_marks(index, changes)
        for change in changes:
            yield self._edit(places, index, *change, marks.get(change[0], ""))

    @property
    def look_alikes(self) -> list[Any]:
        """The messages as they are sent with texts that the engine does not see, as placeholders already."""
        hidden = (index for (index, _), tail in self.tails.items() if _is_placeholder(tail))
        return [self.message_sent(index) for index in dict.fromkeys(hidden) if index >= self.first]

    def message_sent(self, index: int) -> Any:
        """Return a message of the text with the last changes by `with_messages`, without cache marks."""
        first, last = self.starts[index], self.ends[index - self.first]
        edits = [Edit(start - first, end - first, text) for start, end, text in self.sent.get(index, ())]
        message = json.loads(read(replaced(self.text[first:last], edits)))
        if isinstance(message, dict):
            _take_marks(message)
            for _, block in _dicts_in(message):
                for holder in (block, *(inner for _, inner in _dicts_in(block))):
                    _take_marks(holder)
        return message

    def _reply_edits(self, places: Places, index: int, view: Any, new: Any) -> Iterator[Edit]:
        """Yield the changes for thinking that `new` lacks, and for arguments; all else of a reply is kept."""
        yield from self._without_thinking(places, index, view, new)
        for (path, arguments), (_, changed) in zip(_arguments(view), _arguments(new), strict=True):
            if arguments != changed:
                place = places.find(self.starts[index], path)
                yield Edit(place.start, place.end, json.dumps(changed))

    def _without_thinking(self, places: Places, index: int, view: Any, new: Any) -> Iterator[Edit]:
        """Yield the changes for the blocks of thinking that `new` lacks."""
        kept = {one.key for one in signed_thinking(new)}
        gone = [one.path for one in signed_thinking(view) if one.key not in kept]
        for path in dict.fromkeys(path[:-1] for path in gone):
            left = new
            for step in path:
                left = left[step]
            instead = ", ".join(map(json.dumps, left))
            indexes = [int(one[-1]) for one in gone if one[:-1] == path]
            yield from places.without(self.starts[index], path, indexes, instead)

    def _moved_marks(self, index: int, changes: Sequence[tuple[Path, Any]]) -> dict[Path, str]:
        """Return by the path of a new text the cache marks of a block that left with it."""
        moved: dict[Path, str] = {}
        texts = {path[:-2]: path for path, value in changes if value is not None and len(path) > 1}
        for path, value in changes:
            marks = self.tails.get((index, (*path, _MARKS)))
            target = texts.get(path[:-1])
            is_gone = value is None and not self.tails.get((index, (*path, "text")))
            if marks and is_gone and target and (index, (*target[:-1], _MARKS)) not in self.tails:
                moved[target] = marks
        return moved

    def _edit(self, places: Places, index: int, path: Path, value: Any, mark: str) -> Edit:
        if value is None and (tail := self.tails.get((index, (*path, "text")))):
            # The text of the block went to another one; its reminder is kept.
            path, value = (*path, "text"), tail.lstrip()
        elif isinstance(value, str):
            value += self.tails.get((index, path), "")
        place = places.find(self.starts[index], path)
        if value is None:
            return Edit(place.before, place.end, "")
        return Edit(place.start, place.end, json.dumps(value) + mark)


def read_request(
    body: bytes, api: Api, before: Request | None = None, threads: Mapping[str, Thread] | None = None
) -> Request | None:
    """Return the request in `body`, None if nothing in it can be replaced: no tools or no messages.

    Messages at the beginning that have the same text in the request `before` are not read again. Those of the
    thread that it continues, one of `threads` by the id of its last reply, come before its own. Raises
    `ElsewhereError` if the conversation is kept elsewhere, and `ValueError` for anything but a JSON object in
    UTF-8 without repeated fields.
    """
    before = None if before is None or before.first else before
    request, known = parsed(text_of(body), api, before)
    while request.views and role_or_none(request.views[-1]) == "assistant":
        del request.views[-1]
    if is_kept_elsewhere(request.fields):
        raise ElsewhereError
    if _kind_of_thread(request.fields) == _CONTINUE:
        thread = (threads or {}).get(str(request.fields[_THREAD].get("previous_message_id")))
        if thread is None:
            raise ElsewhereError
        known = _take_thread(request, thread)
    if not request.views or not request.tool_names:
        return None
    request.lasts_an_hour = any(map(_lasts_an_hour, (request.fields, request.views[-1])))
    for index in range(known, len(request.views)):
        view = request.views[index]
        request.tails |= {(index, path): tail for path, tail in _prepared(view) if tail}
        if role_or_none(view) == "assistant" and signed_thinking(view):
            request.signed.append(index)
    return request


def changed(some: Sequence[Any], others: Sequence[Any]) -> Iterator[int]:
    """Yield where two lists have another object; most messages are the objects of the request before."""
    return compress(count(), map(is_not, some, others))


def is_kept_elsewhere(fields: Mapping[str, Any]) -> bool:
    """Return whether the beginning of a conversation is with the provider alone."""
    return any(fields.get(name) for name in _KEPT_ELSEWHERE)


def _kind_of_thread(fields: Mapping[str, Any]) -> str | None:
    thread = fields.get(_THREAD)
    kind = thread.get("type") if isinstance(thread, dict) else None
    return kind if isinstance(kind, str) else None


def _take_thread(request: Request, thread: Thread) -> int:
    """Put the messages of a thread before those of a request, and return their number."""
    count = len(thread.views)
    request.thread, request.first = thread, count
    request.views = [*thread.views, *request.views]
    request.starts = [0] * count + request.starts
    request.adding = [count + index for index in request.adding]
    request.fields = {**thread.fields, **request.fields}
    return count


def _lasts_an_hour(holder: Any) -> bool:
    """Return whether a request or a message, or a block of it, has a cache mark that asks for an hour."""
    if not isinstance(holder, dict):
        return False
    holders = [holder, *_blocks(holder.get("system")), *_blocks(holder.get("content"))]
    marks = [mark for each in holders if isinstance(each, dict) for mark in marks_of(each).values()]
    return any(isinstance(mark, dict) and mark.get("ttl") == "1h" for mark in marks)


def parsed(text: str, api: Api, before: Request | None) -> tuple[Request, int]:
    """Return a request with all its messages, and how many are those of the request `before`.

    Raises `ValueError` for anything but a JSON object without repeated fields.
    """
    request, reader = Request(text), BodyReader(text)
    known = 0
    if reader.kind() != "object":
        raise ValueError("expected an object")
    for name in map(str, reader.members()):
        if name in request.fields:
            raise ValueError(f"the field {name!r:.40} comes twice")
        start = reader.place
        if name == api.messages and text.startswith("[", start):
            request.fields[name] = None
            known = 0 if before is None else _take_known(request, before)
            _read_messages(request, reader)
        else:
            request.fields[name] = _field(request, reader, name, before)
        request.spans[name] = start, reader.place
    if reader.peek():
        raise ValueError(f"more than one JSON value, at character {reader.place}")
    request.fields |= {} if api.model is None else {"model": api.model}
    return request, known


def _read_messages(request: Request, reader: BodyReader) -> None:
    """Read the messages that are not known."""
    messages = reader.members()
    if request.ends:
        next(messages)
        reader.move(request.ends[-1])
    for index, _ in enumerate(messages, len(request.ends)):
        request.starts.append(reader.place)
        view = reader.value()
        request.views.append(view)
        request.ends.append(reader.place)
        # Codex sends tools so for models since GPT-6.
        if isinstance(view, dict) and view.get("type") == _ADDED_TOOLS and "tools" in view:
            request.adding.append(index)


def _field(request: Request, reader: BodyReader, name: str, before: Request | None) -> Any:
    """Read the value of a field, which may be as long as the tools; one with the same text is known."""
    start, end = (0, 0) if before is None else before.spans.get(name, (0, 0))
    # All other values may be longer in the request than the same text.
    if before is not None and before.text[start:end].startswith(("[", "{")):
        same = before.text[start:end]
        if request.text.startswith(same, reader.place):
            reader.move(reader.place + len(same))
            return before.fields[name]
    return reader.value()


def _take_known(request: Request, before: Request) -> int:
    """Take the messages that both texts begin with, but the last of `before`; return their number."""
    same = common(request.text, before.text)
    # The character after a message is the same too: a number may be longer.
    known = min(bisect_left(before.ends, same), len(before.views) - 1)
    request.views, request.starts = before.views[:known], before.starts[:known]
    request.ends = before.ends[:known]
    request.adding = [index for index in before.adding if index < known]
    request.signed = [index for index in before.signed if index < known]
    request.tails = {key: tail for key, tail in before.tails.items() if key[0] < known}
    request.edits = {index: made for index, made in dict(before.edits).items() if index < known}
    return known


def conversation_of(request: Request, headers: Mapping[str, str]) -> str:
    """Return a name for the conversation of a request: its session if one is named, and its first messages.

    A subagent has the session of its parent and other first messages.
    """
    if request.thread is not None:
        return request.thread.name
    session = next((value for name in _SESSION_HEADERS if (value := headers.get(name))), None)
    session = session or _session_in(request.fields)
    first = next((i for i, view in enumerate(request.views) if role_or_none(view) == "user"), 0)
    parts = [session, headers.get(_AGENT_HEADER), request.views[: first + 1]]
    parts += ["thread"] * request.is_threaded
    if session is None:
        instructions = (request.fields.get(name) for name in _INSTRUCTIONS)
        parts += [request.fields.get("system"), next(filter(None, instructions), None)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def name_of_conversation(request: Request, headers: Mapping[str, str]) -> str:
    """Return the name of the conversation of a request with views that are the messages of the client."""
    first = next((i for i, view in enumerate(request.views) if role_or_none(view) == "user"), 0)
    views = deepcopy(request.views[: first + 1])
    for view in views:
        for _ in _prepared(view):
            pass
    return conversation_of(replace(request, views=views), headers)


def _session_in(fields: Mapping[str, Any]) -> str | None:
    metadata = fields.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    for value in (fields.get("prompt_cache_key"), user):
        if isinstance(value, str) and value:
            return value
    return None


def _tool_names(tool: Any) -> Iterator[str]:
    """Return the name of a tool, or those of the tools in a namespace or of Gemini's functions."""
    is_namespace = isinstance(tool, dict) and tool.get("type") == "namespace"
    inner = next((_blocks(tool[name]) for name in _DECLARED if _has(tool, name)), [tool])
    return filter(None, map(_tool_name, _blocks(tool.get("tools")) if is_namespace else inner))


def _has(tool: Any, name: str) -> bool:
    return isinstance(tool, dict) and bool(_blocks(tool.get(name)))


def _tool_name(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name") or tool.get("type")
    return name if isinstance(name, str) else None


def _prepared(message: Any) -> Iterator[tuple[Path, str]]:
    """Remove from a message what the engine must not see; yield the ends of texts with their paths."""
    if not isinstance(message, dict):
        return
    if message.get("type") == "mcp_call":
        # The API ran the tool: it is a part of the reply.
        message.pop("output", None)
    _take_marks(message)
    yield from _parts(message)
    if message.get("role") in _CLIENT_ROLES:
        yield from _texts(message)
    elif message.get("role") in _RESULT_ROLES:
        yield from _result(message, "content", ())
    elif str(message.get("type")).endswith(_OUTPUT):
        yield from _result(message, "output", ())
    for index, block in _dicts_in(message):
        _take_marks(block)
        if block.get("type") == "tool_result":
            yield from _result(block, "content", ("content", index))


def mark_fields(block: Any) -> str:
    """Return the marks of the cache of a block as the last fields of a JSON object, empty without one."""
    return "".join(f", {json.dumps(name)}: {json.dumps(mark)}" for name, mark in marks_of(block).items())


def _take_marks(holder: dict[str, Any]) -> str:
    """Remove the marks of the cache from a block or a message; return `mark_fields`."""
    fields = mark_fields(holder)
    if fields:
        bare = without_marks(holder)
        holder.clear()
        holder.update(bare)
    return fields


def _parts(message: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Cut the texts of the client in a content of Gemini, and empty results that are placeholders already."""
    for index, part in _dicts_in(message, "parts") if message.get("role") != "model" else ():
        if _is_text(part):
            part["text"], tail = _split(part["text"])
            yield ("parts", index, "text"), tail
        for name in _RESPONSES:
            result = part.get(name)
            returned = result.get("response") if isinstance(result, dict) else None
            texts = filter(_is_placeholder, returned.values() if isinstance(returned, dict) else ())
            if (text := next(texts, None)) is not None:
                part[name] = {**part[name], "response": {}}
                yield ("parts", index, name, "response"), text


def _is_placeholder(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _PLACEHOLDER_CHARS:
        return False
    return next(known_refs(value), None) is not None


def _dicts_in(message: dict[str, Any], name: str = "content") -> Iterator[tuple[int, dict[str, Any]]]:
    blocks = enumerate(_blocks(message.get(name)))
    return ((index, block) for index, block in blocks if isinstance(block, dict))


def _texts(message: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Cut the texts of the client in a message."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"], tail = _split(content)
        yield ("content",), tail
    for index, block in _dicts_in(message):
        if _is_text(block):
            block["text"], tail = _split(block["text"])
            yield ("content", index, "text"), tail


def _result(holder: dict[str, Any], name: str, path: Path) -> Iterator[tuple[Path, str]]:
    content = holder.get(name)
    if isinstance(content, str):
        holder[name], tail = _split(content)
        yield (*path, name), tail
        return
    blocks = _blocks(content)
    if _must_stay(blocks):
        holder[name] = ""
        return
    for index, block in enumerate(blocks):
        if _is_text(block):
            if marks := _take_marks(block):
                yield (*path, name, index, _MARKS), marks
            block["text"], tail = _split(block["text"])
            yield (*path, name, index, "text"), tail
            if tail and not block["text"]:
                blocks[index] = _KEPT


def _must_stay(blocks: list[Any]) -> bool:
    """Return whether a result has a reference to a tool."""
    return any(isinstance(block, dict) and block.get("type") == "tool_reference" for block in blocks)


def _split(text: str) -> tuple[str, str]:
    """Return a text without the reminders at its end, and these; all of a placeholder is in the second."""
    end = len(text)
    for _ in range(_MOST_REMINDERS):
        closed = text[:end].rstrip()
        start = closed.rfind(_OPENING) if closed.endswith(_CLOSING) else -1
        if start < 0 or reports_in(closed[start:]):
            break
        end = len(text[:start].rstrip())
    if end <= _NOTICE_CHARS and _CUT.match(text[:end]):
        end = 0
    if _is_placeholder(text[:end]):
        end = 0
    return text[:end], text[end:]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str)


def _blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _is_replaceable(message: Any, path: Path) -> bool:
    """Return whether the text at `path` is of a result or a text of the client."""
    if path[0] == "parts":
        return bool(message.get("role") != "model")
    if message.get("role") in _CLIENT_ROLES and path[0] == "content":
        return True
    if message.get("role") in _RESULT_ROLES or str(message.get("type")).endswith(_OUTPUT):
        return path[0] in ("content", "output")
    return path[0] == "content" and path[2:3] == ("content",)


def _arguments(message: Any) -> list[tuple[Path, Any]]:
    """Return the arguments of each tool call in a reply with their path, in order."""
    paths = [item.path for item in scan_of(message).items if item.item_type == "tool_call"]
    return [(path, reduce(getitem, path, message)) for path in paths]


def _is_in(items: Collection[tuple[int, Block]], message: int, path: Path) -> bool:
    """Return whether a change is of one of `items`; outside of a content a message is one result."""
    blocks = (None, *path[1:2]) if path[0] in ("content", "parts") and len(path) > 1 else None
    places = ((at, block[0] if isinstance(block, tuple) else block) for at, block in items)
    return any(at == message and (blocks is None or block in blocks) for at, block in places)


def _changes(old: Any, new: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the texts that differ with their paths in `old`, and the blocks that are gone with None.

    A result of Gemini is an object, which may be replaced by another one.

    Raises:
        ValueError: anything else differs.
    """
    if old is new:
        return
    if _is_one(old, new, path):
        if old != new:
            yield path, new
    elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for name, value in old.items():
            yield from _changes(value, new[name], (*path, name))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_changes(old, new, path)
    elif old != new:
        raise ValueError(f"an unexpected change at {path}")


def _changed(message: Any, changes: Sequence[tuple[Path, Any]]) -> Any:
    """Return a message with some changes that `_changes` yielded."""
    new = deepcopy(message)
    # The last blocks first: one that is gone moves those behind it.
    for path, value in sorted(changes, key=itemgetter(0), reverse=True):
        holder = reduce(getitem, path[:-1], new)
        if value is None:
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
    return new


def _is_one(old: Any, new: Any, path: Path) -> bool:
    """Return whether a value is replaced as one: a text, or an object by one with other fields."""
    if path[-2:] in _RETURNED and isinstance(new, dict):
        return bool(old.keys() != new.keys())
    return isinstance(old, str) and isinstance(new, str)


def _list_changes(old: list[Any], new: list[Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the changes of a list of blocks; if one was replaced for several, the others of them are gone."""
    is_shorter = len(new) < len(old)
    is_replaced = False
    rest = list(reversed(new))
    for index, value in enumerate(old):
        if rest and rest[-1] is value:
            rest.pop()
        elif is_shorter and is_replaced:
            yield (*path, index), None
        elif rest:
            is_replaced = True
            yield from _changes(value, rest.pop(), (*path, index))
    if rest or len(new) > len(old):
        raise ValueError(f"an unexpected change at {path}")
