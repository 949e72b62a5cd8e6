"""Calls that read or change files: the tools known to do so, by name, and the path in their arguments.

A path is compared as it is written, without `./` and doubled slashes: whether a relative path and an absolute
one, or two spellings, name the same file is not known here; `may_be_same` says where they may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from posixpath import normpath
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

from offload.base.patterns import lazy_pattern
from offload.base.threads.locks import NO_FORK
from offload.messages.calls import PATH_FIELDS, PLACEHOLDER, Call, patched_files, plain_name

# Names without the server, as letters and digits.
_READERS = frozenset([
    "read", "readfile", "readtextfile", "readmediafile", "fsread", "fileread", "viewfile", "view",
    "openfile", "cat", "catfile", "getfile", "getfilecontents", "notebookread", "readnotebook", "loadfile",
])  # fmt: skip # a list of words
_WRITERS = frozenset([
    "write", "writefile", "writetofile", "writetextfile", "fswrite", "filewrite", "createfile", "create",
    "createorupdatefile", "savefile", "updatefile", "appendfile", "appendtofile", "overwritefile", "insert",
    "edit", "editfile", "fileedit", "multiedit", "editblock", "fsreplace", "replace", "replaceinfile",
    "strreplace", "strreplaceinfile", "searchreplace", "searchandreplace", "insertline", "insertatline",
    "replacelines", "deletelines", "notebookedit", "editnotebook", "notebookeditcell", "deletefile",
    "removefile", "movefile", "renamefile", "copyfile", "applydiff", "applypatch", "patch", "patchfile",
    "editexistingfile", "undoedit",
])  # fmt: skip # a list of words
# Tools with the action in an argument, and the fields that may name it.
_EDITORS = frozenset([
    "strreplaceeditor", "strreplacebasededittool", "texteditor", "memory", "editor", "fileeditor",
])  # fmt: skip # a list of words
_ACTION_FIELDS = ("command", "action")
_READ_ACTIONS = frozenset(["view", "read", "open"])
_WRITE_ACTIONS = frozenset([
    "create", "write", "str_replace", "insert", "edit", "undo_edit", "delete", "rename", "append",
])  # fmt: skip # a list of words
# Parts of the names of tools that may change files without naming them.
_MAY_WRITE = lazy_pattern(
    r"bash|shell|terminal|exec|command|cmd|run|stdin|task|agent|python|repl|code|jupyter|notebook|edit|write"
    r"|patch|apply|create|replace|insert|delete|remove|move|rename|format|git|commit|checkout|install|build",
    re.IGNORECASE,
)
# Beginnings of the names of tools that change no file that they name.
_ONLY_READS = lazy_pattern(
    r"get|list|ls$|search|find|grep|ripgrep|glob|read|view|show|stat|tree|describe|query|fetch|lookup|inspect"
    r"|context|check(?!out)|count|diff|head|tail|outline|hover|definition|reference|symbol|exists|watch|send|present"
)
# Texts in the arguments of another tool that may be paths.
_MOST_TEXTS, _PATH_CHARS = 100, 500
_PATH_LIKE = lazy_pattern(r"[^\n]*[./\\][^\n]*")
_NEVER_WRITE = frozenset([
    "taskoutput", "tasklist", "taskget", "bashoutput", "gitlog", "gitshow", "gitdiff", "gitstatus",
])  # fmt: skip # a list of words
# Arguments that explain a call and do not change its result.
REMARKS = frozenset(["description", "explanation", "reason", "thought", "timeout"])
_SCHEME = "file://"
_WINDOWS = lazy_pattern(r"[A-Za-z]:[\\/]|\\\\")
_ABOVE = lazy_pattern(r"^(?:\.\./)+")
# The beginning of a path that a shell or another system writes otherwise.
_HOME_OR_DRIVE = lazy_pattern(r"(?:~|\$\{?\w+\}?|%\w+%)/|[a-z]:/")
_HERE = lazy_pattern(r"^(?:\./+)+(?=.)|(?<=/)(?:\./+|/+)")

FileAction = Literal["read", "write"]


class FileCall(NamedTuple):
    """A call that reads or changes files.

    Attributes:
        action: "read" or "write".
        verb: the tool, or its action, for people.
        paths: the files, normalized; none if the arguments do not name them.
    """

    action: FileAction
    verb: str
    paths: tuple[str, ...]


def file_call(call: Call) -> FileCall | None:
    """Return what a call does with files; None unless its tool is known to read or change them."""
    name = plain_name(call.name)
    if name in _EDITORS:
        fields = call.fields
        action = next((fields[field] for field in _ACTION_FIELDS if isinstance(fields.get(field), str)), "")
        is_read, verb = action in _READ_ACTIONS, action if action in _WRITE_ACTIONS else call.name
    elif name in _READERS or name in _WRITERS:
        fields, is_read, verb = call.fields, name in _READERS, call.name
    else:
        return None
    paths = _paths(fields)
    if is_read:
        return FileCall("read", verb, paths) if paths else None
    return FileCall("write", verb, paths)


def reads_files(tool: str) -> bool:
    """Return whether a tool is known to read files."""
    return plain_name(tool) in _READERS


def is_file_tool(tool: str) -> bool:
    """Return whether a tool is known to read or change files: its results show their text."""
    name = plain_name(tool)
    return name in _READERS or name in _WRITERS or name in _EDITORS


def may_write(tool: str) -> bool:
    """Return whether a tool may change files that its arguments do not name."""
    name = plain_name(tool)
    return name not in _NEVER_WRITE and name not in _READERS and _MAY_WRITE.search(name) is not None


def may_change(call: Call) -> tuple[str, ...]:
    """Return the paths that a call of an unknown tool names, and may have changed."""
    name = plain_name(call.name)
    if name in _NEVER_WRITE or _ONLY_READS.match(name):
        return ()
    texts = (text for text in islice(_texts(call.fields), _MOST_TEXTS) if len(text) <= _PATH_CHARS)
    return tuple(plain_path(text) for text in texts if _PATH_LIKE.fullmatch(text))


def plain_path(path: str) -> str:
    """Return a path without the scheme of a local URL, `./` and doubled slashes; one of Windows with `/`."""
    if path.startswith(_SCHEME):
        with NO_FORK:
            from urllib.parse import unquote  # noqa: PLC0415 # only a URL needs it

        path = unquote(path.removeprefix(_SCHEME))
        path = path[1:] if _WINDOWS.match(path, 1) else path
    if _WINDOWS.match(path):
        path = path[:1].upper() + path[1:].replace("\\", "/")
    return _HERE.sub("", path)


def file_name(path: str) -> str:
    """Return the end of a path, the same for all spellings of one."""
    return _folded(path).rpartition("/")[2]


def may_be_same(one: str, other: str) -> bool:
    """Return whether another path may name the same file.

    It is the end of the other one, or differs in `..`, in upper case, in the form of its characters or in the
    separator.
    """
    if one == other:
        return False
    short, long = sorted((_folded(one), _folded(other)), key=len)
    return f"/{long}".endswith(f"/{short.lstrip('/')}")


def _folded(path: str) -> str:
    """Return a path without what spellings differ in, and without `..`, as if no folder were a link."""
    path = normalize("NFC", path.strip(" \t'\"")).casefold().replace("\\", "/")
    return _ABOVE.sub("", normpath(_HOME_OR_DRIVE.sub("", path, count=1)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def request_of(call: Call) -> str:
    """Return a text that is equal for two calls that ask for the same: the tool and its arguments."""
    fields = ((k, v) for k, v in call.fields.items() if k not in REMARKS and v is not None)
    plain = [(str(k), plain_path(v) if k in PATH_FIELDS and isinstance(v, str) else v) for k, v in fields]
    return f"{call.name} {sorted(plain, key=lambda field: field[0])!r}"


def _paths(fields: Mapping[str, Any]) -> tuple[str, ...]:
    named = (fields.get(field) for field in (*PATH_FIELDS, "source", "destination", "old_path", "new_path"))
    paths = [path for path in named if isinstance(path, str) and path and not path.startswith(PLACEHOLDER)]
    return tuple(map(plain_path, paths or patched_files(fields)))
