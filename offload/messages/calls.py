"""Tool calls, and the subject of each: the argument that says what the call is about.

The fields of known tools are those of Claude Code, Codex, Gemini CLI, opencode, pi, LangChain, SWE-agent,
OpenHands, MCP servers of files, git and the web, and browser tools.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from offload.base.patterns import lazy_pattern
from offload.messages.access import get
from offload.messages.stored import as_data

SubjectKind = Literal["path", "command", "query", "url", "text"]

# The id of a tool call, empty for a call without one; and the call.
Made = tuple[str, "Call"]

PATH_FIELDS = (
    *("path", "file_path", "filepath", "filePath", "file", "filename", "file_name", "notebook_path"),
    *("target_file", "relative_path", "absolute_path", "uri"),
)
_PLACE_FIELDS = (
    *PATH_FIELDS,
    *("relative_workspace_path", "paths", "files", "dir_path", "directory", "dir", "repo_path", "folder"),
)
COMMAND_FIELDS = ("command", "cmd", "script", "commands")
_URL_FIELDS = ("url", "urls", "link", "href")
_QUERY_FIELDS = (
    *("query", "pattern", "regex", "search_term", "search_query", "queries", "search_string", "keyword"),
    *("keywords", "glob", "glob_pattern", "sql", "q", "search"),
)
# The purpose of a call; the first of them counts.
_TEXT_FIELDS = ("subject", "title", "description", "name", "question", "code", "prompt", "task", "message")
_FIELDS: tuple[tuple[SubjectKind, tuple[str, ...]], ...] = (
    ("url", _URL_FIELDS),
    ("query", _QUERY_FIELDS),
    ("path", _PLACE_FIELDS),
    ("command", COMMAND_FIELDS),
    ("text", _TEXT_FIELDS),
)
# Of tools whose fields have other meanings: the field that counts, and what it holds.
_TOOLS: dict[str, tuple[str, SubjectKind]] = {
    "movefile": ("source", "path"),
    "multiedit": ("file_path", "path"),
    "pythonrepl": ("query", "text"),
    "pythonreplast": ("query", "text"),
    "writestdin": ("chars", "command"),
}
_SHELL = lazy_pattern(r"bash|shell|terminal|exec|command|cmd|run", re.IGNORECASE)
# The name in mcp__server__name, and its letters and digits. Without the anchor, a search takes time squared.
_SERVER = lazy_pattern(r"\A.*(?:__|[.:/])(?=.)", re.DOTALL)
_SIGNS = lazy_pattern(r"[^a-z0-9]")
# The option of a shell before a script.
_SCRIPT_OPTION = lazy_pattern(r"-[a-z]*c")
_SECRET = lazy_pattern(r"pass(?:word|wd|phrase)|secret|token|api_?key|auth|credential|cookie", re.IGNORECASE)
# An argument that says how, not what.
_SETTING = lazy_pattern(r"timeout|limit|offset|max_|format", re.IGNORECASE)
# A field that replaces what another one finds makes no search.
_REPLACEMENTS = {"replace", "replacement", "new_string", "new_str", "newText"}
_PATCHED = lazy_pattern(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ b/)(.+)$", re.MULTILINE)
PATCH_FIELDS = ("input", "patch", "diff", "patch_text", "patchText")
# The text of a call whose arguments are not a JSON object.
_INPUT = "input"
PLACEHOLDER = "[Offloaded: "
_SHORT_CHARS = 60


class Subject(NamedTuple):
    """The main argument of a tool call: its whole `text`, and the `kind` of it."""

    kind: SubjectKind
    text: str


class Call(msgspec.Struct, frozen=True):
    """A tool call in a message.

    Attributes:
        name: the tool.
        arguments: the arguments, as the object of the message that holds them and no copy, so that a
            history of the messages keeps them at no cost: fields, the JSON of fields, or a text.
    """

    name: str
    arguments: Any = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The arguments by name; an argument without a name is `input`."""
        value = self.arguments
        if isinstance(value, str):
            value = _parsed(value)
        elif not isinstance(value, Mapping | list):
            value = as_data(value)
        if isinstance(value, Mapping):
            return value
        return {} if value is None else {_INPUT: value}

    @property
    def subject(self) -> Subject | None:
        """The argument that says what the call is about, None if no argument does."""
        fields = self.fields
        return _of_tool(self.name, fields) or _by_name(fields) or _of_patch(fields) or _of_short(fields)


class Asked(NamedTuple):
    """The calls with one id that the model made in one turn, and the tools that results so far name."""

    turn: int
    calls: tuple[Call, ...]
    results: tuple[str | None, ...] = ()

    def answered(self, call_id: str, tool: str | None, results: Sequence[str | None] = ()) -> Call | None:
        """Return the call that the next result answers, after further `results`; None if none is certain.

        An id may be used again within a turn, and some formats have none: then results are in the order of
        the calls, of those to the same tool if the result names its `tool`.
        """
        if call_id and len(self.calls) == 1:
            return self.calls[0]
        earlier = [*self.results, *results]
        calls = [call for call in self.calls if tool is None or call.name == tool]
        if calls and tool is not None:
            earlier = [each for each in earlier if each == tool]
        elif call_id:
            calls = [*self.calls]
        return calls[len(earlier)] if len(earlier) < len(calls) else None


class Before(NamedTuple):
    """The state of `Calls` before a message."""

    asked: Mapping[str, Asked | None]
    turn: int
    is_reply: bool


class Calls:
    """The tool calls of a conversation by id that results of later messages may answer.

    The latest turn with calls of an id counts; calls without an id have the empty one.
    """

    def __init__(self, made: Iterable[Made] = ()) -> None:
        self._asked: dict[str, Asked] = {}
        self._turn = 0
        self._is_reply = False
        self.add(made, {}, is_reply=True)

    def get(self, call_id: str) -> Asked | None:
        """Return the calls with an id in the latest turn that has any."""
        return self._asked.get(call_id)

    def add(
        self, made: Iterable[Made], results: Mapping[str, Sequence[str | None]], *, is_reply: bool
    ) -> Before:
        """Note a message: the calls that it makes, and by id the tools that its results name.

        Returns what `undo` needs.
        """
        before: dict[str, Asked | None] = {}
        turn, was_reply = self._turn, self._is_reply
        self._turn += is_reply and not was_reply
        self._is_reply = is_reply
        for call_id, tools in results.items():
            if (asked := self._asked.get(call_id)) is not None:
                before[call_id] = asked
                self._asked[call_id] = asked._replace(results=(*asked.results, *tools))
        for call_id, call in made:
            asked = self._asked.get(call_id)
            before.setdefault(call_id, asked)
            calls = asked.calls if asked is not None and asked.turn == self._turn else ()
            self._asked[call_id] = Asked(self._turn, (*calls, call))
        return Before(before, turn, was_reply)

    def undo(self, before: Before) -> None:
        """Forget the last message, for which `add` returned `before`."""
        for call_id, asked in before.asked.items():
            if asked is None:
                self._asked.pop(call_id, None)
            else:
                self._asked[call_id] = asked
        self._turn, self._is_reply = before.turn, before.is_reply


def main_argument(tool: str, arguments: Any) -> str | None:
    """Return the text of a call's subject, for callers that have the call but no message of it."""
    subject = Call(tool, arguments).subject
    return None if subject is None else subject.text


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {_INPUT: text}


def _of_tool(tool: str, fields: Mapping[str, Any]) -> Subject | None:
    tool = _SERVER.sub("", tool)
    name = _SIGNS.sub("", tool.lower())
    if name in _TOOLS:
        field, kind = _TOOLS[name]
        return _first(kind, (field,), fields)
    if _SHELL.search(tool):
        return _first("command", (*COMMAND_FIELDS, _INPUT), fields)
    return None


def _by_name(fields: Mapping[str, Any]) -> Subject | None:
    for kind, names in _FIELDS:
        if kind == "query" and not _REPLACEMENTS.isdisjoint(fields):
            continue
        subject = _first(kind, names, fields)
        if subject is not None:
            place = _first("path", _PLACE_FIELDS, fields) if kind == "query" else None
            return subject if place is None else Subject(kind, f"{subject.text} in {place.text}")
    return None


def _of_patch(fields: Mapping[str, Any]) -> Subject | None:
    files = patched_files(fields)
    return Subject("path", ", ".join(files)) if files else None


def patched_files(fields: Mapping[str, Any]) -> list[str]:
    """Return the files of the patch in a call's arguments, none without one."""
    patches = (patch for name in PATCH_FIELDS if isinstance(patch := fields.get(name), str))
    return next((files for patch in patches if (files := _PATCHED.findall(patch))), [])


def plain_name(tool: str) -> str:
    """Return a tool's name without its server, as lower-case letters and digits."""
    return _SIGNS.sub("", _SERVER.sub("", tool).lower())


def _of_short(fields: Mapping[str, Any]) -> Subject | None:
    """Return the short arguments, else the shortest one; of several each with its name."""
    telling = {name: text for name, value in fields.items() if (text := _telling(name, value))}
    short = {name: text for name, text in telling.items() if len(text) <= _SHORT_CHARS and "\n" not in text}
    if not short:
        text = min(telling.values(), key=len, default="")
        return Subject("text", text) if text else None
    if len(short) == 1:
        [text] = short.values()
        if not text.isdecimal():
            return Subject("text", text)
    return Subject("text", ", ".join(f"{name}={text}" for name, text in short.items()))


def _telling(name: Any, value: Any) -> str:
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_plain or not isinstance(name, str) or _SECRET.search(name) or _SETTING.search(name):
        return ""
    text = str(value)
    return text if _is_telling(text) and any(map(str.isalnum, text[:_SHORT_CHARS])) else ""


def _first(kind: SubjectKind, names: Iterable[str], fields: Mapping[str, Any]) -> Subject | None:
    texts = (_text_of(kind, fields.get(name)) for name in names)
    return next((Subject(kind, text) for text in texts if _is_telling(text)), None)


def _text_of(kind: SubjectKind, value: Any) -> str:
    """Return an argument as one text: the script or the words of a command, the paths of files."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list | tuple) else ()
    named = (part if isinstance(part, str) else get(part, "path") for part in parts)
    texts = [text for text in named if isinstance(text, str)]
    if kind != "command":
        return ", ".join(texts)
    if len(texts) > 2 and _SCRIPT_OPTION.fullmatch(texts[1]):  # noqa: PLR2004 # program, option, script
        return texts[2]
    # A program has no blank in its name: such a list is one of whole commands.
    return "; ".join(texts) if any(" " in text for text in texts[:1]) else shlex.join(texts)


def _is_telling(text: str) -> bool:
    return bool(text) and not text.isspace() and not text.startswith(PLACEHOLDER)
