"""Messages as the engine sees them: without what must be kept as the client has it.

These are cache marks, reminders that a client put into a text, results with references to tools, and texts
that are placeholders or a client's notices already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from offload.engine.placeholder.forms import known_refs
from offload.gateway._spans import Path
from offload.messages.marks import marks_of, without_marks
from offload.messages.reports import reports_in

_CLIENT_ROLES = ("user", "system", "developer")
_RESULT_ROLES, _OUTPUT = ("tool", "function"), "_call_output"
# Types of steps of Gemini's Interactions API.
_STEP_INPUT, _STEP_RESULT = "user_input", "function_result"
# Gemini's part with a result has two spellings.
RESPONSES = ("functionResponse", "function_response")
# The last step of the path to the marks of the cache that a text block in a result had.
MARKS = "marks"
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"
_MOST_REMINDERS = 50
_PLACEHOLDER_CHARS = 30_000
# Notices of Claude Code in place of an output that it cut: they name the file with the whole of it.
_CUT = re.compile(
    r".{0,2000}<persisted-output>.*</persisted-output>"
    r"|(?:Error: )?result \([\d,]+ characters.{0,200}exceeds maximum allowed tokens.*saved to ",
    re.DOTALL,
)
_NOTICE_CHARS = 8_000
_KEPT = {"type": "kept"}
# By type of a call that the API runs, the field with its result.
_OF_SERVED = {"mcp_call": "output", "mcp_server_tool_result": "result"}


def prepared(message: Any) -> Iterator[tuple[Path, str]]:
    """Remove from a message what the engine must not see; yield the ends of texts with their paths."""
    if not isinstance(message, dict):
        return
    if (field := _OF_SERVED.get(str(message.get("type")))) is not None:
        # The API ran the tool: it is a part of the reply.
        message.pop(field, None)
    take_marks(message)
    yield from _parts(message)
    if is_of_client(message):
        yield from _texts(message)
    elif (field := result_field(message)) is not None:
        yield from _result(message, field, ())
    for index, block in dicts_in(message):
        take_marks(block)
        if block.get("type") == "tool_result":
            yield from _result(block, "content", ("content", index))


def is_of_client(message: Mapping[str, Any]) -> bool:
    """Return whether a message has texts of the client in its content."""
    return message.get("role") in _CLIENT_ROLES or message.get("type") == _STEP_INPUT


def result_field(message: Mapping[str, Any]) -> str | None:
    """Return the field with the tool result that a message is; None if it is none."""
    if message.get("role") in _RESULT_ROLES:
        return "content"
    if message.get("type") == _STEP_RESULT:
        return "result"
    return "output" if str(message.get("type")).endswith(_OUTPUT) else None


def mark_fields(block: Any) -> str:
    """Return the marks of the cache of a block as the last fields of a JSON object, empty without one."""
    return "".join(f", {json.dumps(name)}: {json.dumps(mark)}" for name, mark in marks_of(block).items())


def take_marks(holder: dict[str, Any]) -> str:
    """Remove the marks of the cache from a block or a message; return `mark_fields`."""
    fields = mark_fields(holder)
    if fields:
        bare = without_marks(holder)
        holder.clear()
        holder.update(bare)
    return fields


def _parts(message: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Cut the texts of the client in a content of Gemini, and empty results that are placeholders already."""
    for index, part in dicts_in(message, "parts") if message.get("role") != "model" else ():
        if _is_text(part):
            part["text"], tail = _split(part["text"])
            yield ("parts", index, "text"), tail
        for name in RESPONSES:
            result = part.get(name)
            returned = result.get("response") if isinstance(result, dict) else None
            texts = filter(is_placeholder, returned.values() if isinstance(returned, dict) else ())
            if (text := next(texts, None)) is not None:
                part[name] = {**part[name], "response": {}}
                yield ("parts", index, name, "response"), text


def is_placeholder(value: Any) -> bool:
    """Return whether a value is a text with a placeholder in it."""
    if not isinstance(value, str) or len(value) > _PLACEHOLDER_CHARS:
        return False
    return next(known_refs(value), None) is not None


def dicts_in(message: dict[str, Any], name: str = "content") -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the blocks of a message that are objects, each with its index."""
    blocks = enumerate(as_list(message.get(name)))
    return ((index, block) for index, block in blocks if isinstance(block, dict))


def _texts(message: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Cut the texts of the client in a message."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"], tail = _split(content)
        yield ("content",), tail
    for index, block in dicts_in(message):
        if _is_text(block):
            block["text"], tail = _split(block["text"])
            yield ("content", index, "text"), tail


def _result(holder: dict[str, Any], name: str, path: Path) -> Iterator[tuple[Path, str]]:
    content = holder.get(name)
    if isinstance(content, str):
        holder[name], tail = _split(content)
        yield (*path, name), tail
        return
    blocks = as_list(content)
    if _must_stay(blocks):
        holder[name] = ""
        return
    for index, block in enumerate(blocks):
        if _is_text(block):
            if marks := take_marks(block):
                yield (*path, name, index, MARKS), marks
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
    if is_placeholder(text[:end]):
        end = 0
    return text[:end], text[end:]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str)


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and an empty one for anything else."""
    return value if isinstance(value, list) else []
