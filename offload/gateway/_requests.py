"""Requests of three APIs: their messages as the engine sees them, and the way back to the bytes that came.

The engine gets a view of each message, without what must be kept: cache marks, reminders that a client put
into a result, results with references to tools, and texts that are placeholders already.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offload.gateway._spans import Edit, Path, Places, Reader, common, replaced
from offload.messages import Block, role_or_none, signed_thinking
from offload.placeholder import known_refs


class Api(NamedTuple):
    """An API of a model.

    Attributes:
        end: the end of its path.
        messages: the field of a request with the messages.
        cache: the name of the prices of its prompt cache, if the settings have none.
    """

    name: str
    end: str
    messages: str
    cache: str


APIS = (
    Api("Anthropic Messages", "/v1/messages", "messages", "anthropic"),
    Api("OpenAI chat", "/chat/completions", "messages", "openai"),
    Api("OpenAI Responses", "/responses", "input", "openai"),
)

# Behind the path of a request, to count its tokens; the provider checks its thinking too.
COUNT = "/count_tokens"
READ_BACK = "context_read"
# Headers that name a session, and the header of a subagent in it.
_SESSION_HEADERS = ("x-claude-code-session-id", "thread-id", "session-id", "session_id", "x-session-affinity")
_AGENT_HEADER = "x-claude-code-agent-id"
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"
_RESULT_ROLES, _OUTPUT = ("tool", "function"), "_call_output"
_MOST_REMINDERS = 50
_PLACEHOLDER_CHARS = 30_000
# Of the Responses API: the rest of the conversation is with the provider.
_KEPT_ELSEWHERE = ("previous_response_id", "conversation")
_KEPT = {"type": "kept"}


def api_of(path: str) -> Api | None:
    """Return the API of a path by its end."""
    return next((api for api in APIS if path.endswith(api.end)), None)


@dataclass(slots=True)
class Request:
    """A request with tools, read.

    Attributes:
        views: the messages as the engine sees them; those at the end that the model wrote are left out.
        starts: where each message starts in the text; `ends` is where it ends.
        tails: by message and path, the end of a text that the engine does not see.
        edits: by message, what the engine returned for it last and the changes of the text for that.
        problems: why messages were kept that the engine changed.
        lasts_an_hour: whether a cache mark asks for an hour, which has another price.
    """

    text: str
    fields: dict[str, Any]
    views: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    tails: dict[tuple[int, Path], str] = field(default_factory=dict)
    edits: dict[int, tuple[Any, list[Edit]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lasts_an_hour: bool = False

    @property
    def tool_names(self) -> list[str]:
        tools = self.fields.get("tools")
        return [name for tool in tools if (name := _tool_name(tool))] if isinstance(tools, list) else []

    @property
    def can_read_back(self) -> bool:
        """Whether the model has a tool to read back what was replaced."""
        return any(name.endswith(READ_BACK) for name in self.tool_names)

    @property
    def replies(self) -> Iterator[Any]:
        """The messages of the model."""
        return (view for view in self.views if role_or_none(view) == "assistant")

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

    def with_messages(self, messages: Sequence[Any], without: Collection[tuple[int, Block]] = ()) -> str:
        """Return the text with the changes of the engine in the views `messages`, but for items in `without`.

        A message that cannot be changed is kept, and `problems` says why.
        """
        edits: list[Edit] = []
        places = Places(self.text)
        for index, (view, new) in enumerate(zip(self.views, messages, strict=True)):
            if new is view:
                continue
            known, made = self.edits.get(index, (None, []))
            if known is new and not without:
                edits += made
                continue
            try:
                if role_or_none(view) == "assistant":
                    made = [*self._without_thinking(places, index, view, new)]
                    self.edits[index] = new, made
                    edits += made
                    continue
                changes = [c for c in _changes(view, new) if _is_result(view, c[0])]
                kept = [c for c in changes if not _is_in(without, index, c[0])]
                made = [self._edit(places, index, path, value) for path, value in kept]
                edits += made
                if kept == changes:
                    self.edits[index] = new, made
            except ValueError as error:
                self.problems.append(f"a message cannot be changed: {error}")
        return replaced(self.text, edits) if edits else self.text

    def _without_thinking(self, places: Places, index: int, view: Any, new: Any) -> Iterator[Edit]:
        """Yield the changes for the blocks of thinking that `new` lacks; all else of a reply is kept."""
        kept = {one.key for one in signed_thinking(new)}
        gone = [one.path for one in signed_thinking(view) if one.key not in kept]
        for path in dict.fromkeys(path[:-1] for path in gone):
            left = new
            for step in path:
                left = left[step]
            instead = ", ".join(map(json.dumps, left))
            indexes = [int(one[-1]) for one in gone if one[:-1] == path]
            yield from places.without(self.starts[index], path, indexes, instead)

    def _edit(self, places: Places, index: int, path: Path, value: str | None) -> Edit:
        if value is None and (tail := self.tails.get((index, (*path, "text")))):
            # The text of the block went to another one; its reminder is kept.
            path, value = (*path, "text"), tail.lstrip()
        elif value is not None:
            value += self.tails.get((index, path), "")
        place = places.find(self.starts[index], path)
        if value is None:
            return Edit(place.before, place.end, "")
        return Edit(place.start, place.end, json.dumps(value))


def read_request(body: bytes, api: Api, before: Request | None = None) -> Request | None:
    """Return the request in `body`, None if nothing in it can be replaced: no tools or no messages.

    Messages at the beginning that have the same text in the request `before` are not read again. Raises
    `ValueError` for anything but a JSON object in UTF-8 without repeated fields.
    """
    request, known = _parsed(body.decode(), api.messages, before)
    while request.views and role_or_none(request.views[-1]) == "assistant":
        del request.views[-1]
    is_elsewhere = any(request.fields.get(name) for name in _KEPT_ELSEWHERE)
    if is_elsewhere or not request.views or not request.tool_names:
        return None
    request.lasts_an_hour = any(map(_lasts_an_hour, (request.fields, request.views[-1])))
    for index in range(known, len(request.views)):
        for path, tail in _prepared(request.views[index]):
            request.tails[index, path] = tail
    return request


def _lasts_an_hour(holder: Any) -> bool:
    """Return whether a request or a message, or a block of it, has a cache mark that asks for an hour."""
    if not isinstance(holder, dict):
        return False
    holders = [holder, *_blocks(holder.get("system")), *_blocks(holder.get("content"))]
    marks = [each.get("cache_control") for each in holders if isinstance(each, dict)]
    return any(isinstance(mark, dict) and mark.get("ttl") == "1h" for mark in marks)


def _parsed(text: str, messages: str, before: Request | None) -> tuple[Request, int]:
    """Return a request, and how many of its messages are those of the request `before`."""
    request, reader = Request(text, {}), Reader(text)
    known = 0
    for name in reader.members():
        if name in request.fields:
            raise ValueError(f"the field {name!r:.40} comes twice")
        if name == messages and text.startswith("[", reader.at):
            request.fields[name] = None
            known = 0 if before is None else _take_known(request, before)
            for _ in reader.elements(request.ends):
                request.starts.append(reader.at)
                request.views.append(reader.value())
                request.ends.append(reader.at)
        else:
            request.fields[name] = reader.value()
    reader.end()
    return request, known


def _take_known(request: Request, before: Request) -> int:
    """Take the messages that both texts begin with, but the last of `before`; return their number."""
    same = common(request.text, before.text)
    # The character after a message is the same too: a number may be longer.
    known = min(bisect_left(before.ends, same), len(before.views) - 1)
    request.views, request.starts = before.views[:known], before.starts[:known]
    request.ends = before.ends[:known]
    request.tails = {key: tail for key, tail in before.tails.items() if key[0] < known}
    request.edits = {index: made for index, made in dict(before.edits).items() if index < known}
    return known


def hint_of(headers: Mapping[str, str], api: Api) -> tuple[str | None, ...]:
    """Return what requests of one conversation have in common before they are read."""
    return (api.name, *(headers.get(name) for name in (*_SESSION_HEADERS, _AGENT_HEADER)))


def conversation_of(request: Request, headers: Mapping[str, str]) -> str:
    """Return a name for the conversation of a request: its session if one is named, and its first messages.

    A subagent has the session of its parent and other first messages.
    """
    session = next((value for name in _SESSION_HEADERS if (value := headers.get(name))), None)
    session = session or _session_in(request.fields)
    first = next((i for i, view in enumerate(request.views) if role_or_none(view) == "user"), 0)
    parts = [session, headers.get(_AGENT_HEADER), request.views[: first + 1]]
    if session is None:
        parts += [request.fields.get("system"), request.fields.get("instructions")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _session_in(fields: Mapping[str, Any]) -> str | None:
    metadata = fields.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    for value in (fields.get("prompt_cache_key"), user):
        if isinstance(value, str) and value:
            return value
    return None


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
    message.pop("cache_control", None)
    if message.get("role") in _RESULT_ROLES:
        yield from _result(message, "content", ())
    elif str(message.get("type")).endswith(_OUTPUT):
        yield from _result(message, "output", ())
    for index, block in enumerate(_blocks(message.get("content"))):
        if isinstance(block, dict):
            block.pop("cache_control", None)
            if block.get("type") == "tool_result":
                yield from _result(block, "content", ("content", index))


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
            block.pop("cache_control", None)
            block["text"], tail = _split(block["text"])
            yield (*path, name, index, "text"), tail
            if tail and not block["text"]:
                blocks[index] = _KEPT


def _must_stay(blocks: list[Any]) -> bool:
    """Return whether a result has a reference to a tool, or a cache mark that would leave with its block."""
    texts = [block for block in blocks if _is_text(block) and _split(block["text"])[0]]
    return any(isinstance(block, dict) and block.get("type") == "tool_reference" for block in blocks) or any(
        "cache_control" in block for block in texts[1:]
    )


def _split(text: str) -> tuple[str, str]:
    """Return a text without the reminders at its end, and these; all of a placeholder is in the second."""
    end = len(text)
    for _ in range(_MOST_REMINDERS):
        closed = text[:end].rstrip()
        start = closed.rfind(_OPENING) if closed.endswith(_CLOSING) else -1
        if start < 0:
            break
        end = len(text[:start].rstrip())
    if end <= _PLACEHOLDER_CHARS and next(known_refs(text[:end]), None) is not None:
        end = 0
    return text[:end], text[end:]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str)


def _blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _is_result(message: Any, path: Path) -> bool:
    """Return whether the text at `path` is of a result, and not another one that looks like a placeholder."""
    if message.get("role") in _RESULT_ROLES or str(message.get("type")).endswith(_OUTPUT):
        return path[0] in ("content", "output")
    return path[0] == "content" and path[2:3] == ("content",)


def _is_in(items: Collection[tuple[int, Block]], message: int, path: Path) -> bool:
    """Return whether a change is of one of `items`; outside Anthropic's format a message is one result."""
    is_block = path[2:3] == ("content",)
    places = ((at, block[0] if isinstance(block, tuple) else block) for at, block in items)
    return any(at == message and (block == path[1] if is_block else True) for at, block in places)


def _changes(old: Any, new: Any, path: Path = ()) -> Iterator[tuple[Path, str | None]]:
    """Yield the texts that differ with their paths in `old`, and the blocks that are gone with None.

    Raises:
        ValueError: anything else differs.
    """
    if old is new:
        return
    if isinstance(old, str) and isinstance(new, str):
        if old != new:
            yield path, new
    elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for name, value in old.items():
            yield from _changes(value, new[name], (*path, name))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_changes(old, new, path)
    elif old != new:
        raise ValueError(f"an unexpected change at {path}")


def _list_changes(old: list[Any], new: list[Any], path: Path) -> Iterator[tuple[Path, str | None]]:
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
