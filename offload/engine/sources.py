"""The sources of records: which calls read or changed them, or made the same request again.

One process knows them from the tool calls that the host passes; no request is sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple, TypeVar

import msgspec

from offload.base.patterns import lazy_pattern
from offload.base.text import encode_text
from offload.base.threads.locks import Lock
from offload.engine.placeholder.default import tool_label
from offload.messages import Call
from offload.messages.files import (
    FileCall,
    file_call,
    file_name,
    may_be_same,
    may_change,
    may_write,
    reads_files,
    request_of,
)

# The id of a call, or another key of a call without one.
CallKey = str | int

# Results of tools that say by these words that they changed nothing, in formats that do not mark errors.
_FAILED = lazy_pattern(
    r"""\s*(?:observation:\s*)?(?:
        <tool_use_error>                                  # Claude Code
        | no\ replacement\ was\ performed                 # Anthropic's text editor
        | your\ proposed\ edit\ has\ introduced            # SWE-agent
        | (?:enoent|eacces|eisdir):                       # Node
    )""",
    re.VERBOSE | re.IGNORECASE,
)
# Others that sound like it, and may be the text of a change: whether there was one is not known.
_DOUBTFUL = lazy_pattern(
    r"""\s*(?:observation:\s*)?(?:
        <\w*error | \W{0,3}error\b | \{\s*"(?:error|iserror)" | traceback | exception
        | no\ (?:changes?|match|edits?)\b | could\ not | cannot | can't | failed | unable
        | invalid
        | permission\ denied | access\ denied
        | (?:the\ )?(?:string|text|old_str\w*|file|path)\b[^\n]{0,200}?\b
          (?:not\ found|does\ not\ exist|not\ been\ read)
    )""",
    re.VERBOSE | re.IGNORECASE,
)

# Calls of removed messages that are remembered: of a record that is older than them, a change is unknown.
MOST_ABSENT = 10_000

# The beginning of a line, by the verb.
_FIRST = {"read": "read at call", "written": "written at call", "": "result of call"}

K = TypeVar("K")
V = TypeVar("V")
CallState = Literal["open", "done", "failed", "doubtful", "gone"]


class _TrackedCall(msgspec.Struct, eq=False):
    """A tool call of the session.

    Attributes:
        number: its number among all calls, from 1.
        file: the files that it reads or changes, None for other calls.
        request: a hash, equal to that of a call that asks for the same; None if it changes files.
        state: "open" until its result is known; "doubtful" if that does not say whether it failed; "gone" if
            the conversation was rolled back, or if another call has the same id.
        ref: the ref of its result; None if it is not known to be stored.
        digest: the hash of its result's text; None if unknown.
        refs: all its refs, those of its arguments too.
        changes: names of the files that it changes or may change.
    """

    number: int
    file: FileCall | None
    request: bytes | None
    state: CallState = "open"
    ref: str | None = None
    digest: int | None = None
    refs: list[str] = msgspec.field(default_factory=list)
    changes: list[str] = msgspec.field(default_factory=list)

    @property
    def is_read(self) -> bool:
        return self.file is not None and self.file.action == "read"

    def is_after(self, number: int) -> bool:
        """Return whether it did not fail and has a later number."""
        return self.state in ("done", "doubtful") and self.number > number


class FileChanges(NamedTuple):
    """The changes of a file since a record of it: the last of them, and how many there are."""

    number: int
    verb: str
    times: int


class Version(NamedTuple):
    """Another result of the same request: its call, its ref if it is stored, whether it has the same text."""

    number: int
    ref: str | None
    is_equal: bool


class Freshness(NamedTuple):
    """The facts about a record's source.

    Attributes:
        number: the number of the call; None if the call is not known here.
        verb: "read" or "written" for a file, empty for another source.
        edit: the changes of the file since, by calls that name it.
        is_unclear: whether it is a file that may have been changed since by a call that names none.
        newer: the last later result of the same request.
        older: the stored result of the same request before, if it has another text.
    """

    number: int | None
    verb: str = ""
    edit: FileChanges | None = None
    is_unclear: bool = False
    newer: Version | None = None
    older: Version | None = None


class Sources:
    """The tool calls of one session that this process was passed."""

    def __init__(self) -> None:
        self._lock = Lock()
        # The number of the last call, and of the last that was forgotten.
        self._count = self._forgotten = 0
        # In order of their numbers; those whose messages were removed are also absent.
        self._calls: dict[CallKey, _TrackedCall] = {}
        self._absent: dict[CallKey, None] = {}
        self._of_ref: dict[str, _TrackedCall] = {}
        # By file name, the calls that change a file, or may; by request, those that ask for the same; and by
        # number, the calls that may change any file.
        self._writes: dict[str, list[tuple[str, _TrackedCall]]] = {}
        self._same: dict[bytes, list[_TrackedCall]] = {}
        self._unclear: dict[int, _TrackedCall] = {}
        self._open: list[_TrackedCall] = []

    # Calls that the host passes

    def drop(self, dropped: Collection[CallKey], new: Container[CallKey]) -> None:
        """Forget the calls of dropped messages that were rolled back, and the oldest of many others.

        Dropped calls that are older than one that is kept, or among the `new` messages, were removed by a
        compaction: they happened.
        """
        with self._lock:
            while len(self._absent) > MOST_ABSENT:
                self._forget(next(iter(self._absent)))
            gone = {key for key in dropped if key in self._calls and key not in new}
            if not gone:
                return
            while self._calls and next(reversed(self._calls)) in gone:
                self._take(next(reversed(self._calls)))
            self._count = max(self._forgotten, *(c.number for c in [*self._calls.values()][-1:]), 0)
            self._absent |= dict.fromkeys(key for key in dropped if key in self._calls)

    def _forget(self, key: CallKey) -> None:
        """Forget a call that happened: what it changed since an older one is not known any more."""
        self._forgotten = max(self._forgotten, self._take(key).number)

    def _take(self, key: CallKey) -> _TrackedCall:
        """Remove a call from all that is known."""
        call = self._calls.pop(key)
        self._absent.pop(key, None)
        self._unclear.pop(call.number, None)
        for ref in call.refs:
            if self._of_ref.get(ref) is call:
                del self._of_ref[ref]
        for name in dict.fromkeys(call.changes):
            _cut(self._writes, name, [write for write in self._writes[name] if write[1] is not call])
        if call.request in self._same:
            _cut(self._same, call.request, [same for same in self._same[call.request] if same is not call])
        call.state = "gone"
        return call

    def add_call(self, key: CallKey, call: Call, *, is_again: bool = False) -> None:
        """Note a call; a known call that is passed again keeps its number.

        Of two calls with one id neither is known, since results and records name only the id: any file may
        have been changed.
        """
        with self._lock:
            was_absent = key in self._absent
            self._absent.pop(key, None)
            known = self._calls.get(key)
            file = file_call(call)
            if known is not None and is_again and not _differ(known.file, file):
                return
            is_write = file is not None and file.action == "write"
            # Arguments may be long, and every call is kept.
            request = None if is_write else sha256(encode_text(request_of(call))).digest()
            made = _TrackedCall(self._count + 1, file, request)
            if known is not None and was_absent and (known.file, known.request) == (file, made.request):
                return
            self._count += 1
            if known is not None:
                known.state = "gone"
                self._unclear[self._count] = _TrackedCall(self._count, None, None, "done")
                return
            self._calls[key] = made
            self._open.append(made)
            if made.request is not None:
                self._same.setdefault(made.request, []).append(made)
            self._note_changes(call, made)

    def _note_changes(self, call: Call, made: _TrackedCall) -> None:
        """Note which files a call changes or may change."""
        file = made.file
        if may_write(call.name) if file is None else file.action == "write" and not file.paths:
            self._unclear[made.number] = made
            return
        if file is None or file.action == "write":
            for path in may_change(call) if file is None else file.paths:
                made.changes.append(file_name(path))
                self._writes.setdefault(file_name(path), []).append((path, made))

    def add_result(self, key: CallKey, text: str | None, *, is_error: bool) -> None:
        """Note the result of a call; its text is None if a placeholder replaces it."""
        with self._lock:
            call = self._calls.get(key)
            if call is None or call.state == "gone":
                return
            said = text if call.request is None and text is not None else ""
            if is_error or _FAILED.match(said):
                call.state = "failed"
            else:
                call.state = "doubtful" if _DOUBTFUL.match(said) else "done"
            call.digest = call.digest if text is None else hash(text)

    def end_calls(self) -> None:
        """Note that the model has replied: all calls before have ended."""
        with self._lock:
            for call in self._open:
                if call.state == "open":
                    call.state = "done"
            self._open.clear()

    def add_record(self, key: CallKey, ref: str, *, is_result: bool) -> None:
        """Note the record of a call's result, or of its arguments."""
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                return
            self._of_ref[ref] = call
            call.refs += [] if ref in call.refs else [ref]
            if is_result and call.state != "gone":
                call.ref = ref

    # Facts for the tools

    def freshness(self, ref: str, tool: str | None = None) -> Freshness | None:
        """Return what is known of the source of a record of a tool; None if there is nothing to say."""
        with self._lock:
            made = self._of_ref.get(ref)
            if made is not None and made.state != "gone":
                return self._known(made)
        return Freshness(None, is_unclear=True) if tool is not None and reads_files(tool) else None

    def _known(self, call: _TrackedCall) -> Freshness | None:
        number, paths = call.number, call.file.paths if call.file else ()
        named = (write for path in paths for write in self._writes.get(file_name(path), ()))
        writes = [(path, made) for path, made in named if made.is_after(number)]
        is_sure = [path in paths and made.file is not None and made.state == "done" for path, made in writes]
        edits = [made for (_, made), is_edit in zip(writes, is_sure, strict=True) if is_edit]
        others = [path for (path, _), is_edit in zip(writes, is_sure, strict=True) if not is_edit]
        is_unclear = any(path in paths or any(may_be_same(path, p) for p in paths) for path in others)
        is_unclear |= number < self._forgotten
        is_unclear |= any(c.is_after(number) for c in reversed(self._unclear.values()))
        last = max(edits, key=lambda made: made.number, default=None)
        known = Freshness(
            number,
            "" if call.file is None else {"read": "read", "write": "written"}[call.file.action],
            FileChanges(last.number, last.file.verb, len(edits)) if last is not None and last.file else None,
            is_unclear and call.is_read,
            *self._versions(call),
        )
        return known if any(known[2:]) else None

    def _versions(self, call: _TrackedCall) -> tuple[Version | None, Version | None]:
        """Return the last later result of the same request, and the stored one before with another text."""
        same = [c for c in self._same.get(call.request or b"", ()) if c.state == "done" and c is not call]
        newer = [c for c in same if c.number > call.number]
        older = [c for c in same if c.number < call.number and c.ref and not _are_equal(c, call)]
        return _version(newer, call), _version(older, call)


def _cut(lists: dict[K, list[V]], key: K, left: list[V]) -> None:
    """Set a list in a mapping, or remove an empty one."""
    if left:
        lists[key] = left
    else:
        del lists[key]


def _version(calls: Sequence[_TrackedCall], call: _TrackedCall) -> Version | None:
    return Version(calls[-1].number, calls[-1].ref, _are_equal(calls[-1], call)) if calls else None


def _are_equal(one: _TrackedCall, other: _TrackedCall) -> bool:
    return one.digest is not None and one.digest == other.digest


def _differ(one: FileCall | None, other: FileCall | None) -> bool:
    """Return whether two calls name other files; a placeholder in the arguments may hide them."""
    return one is not None and other is not None and bool(one.paths and other.paths) and one != other


# Text


def source_line(known: Freshness, ref: str, *, has_diff: bool, is_first: bool) -> str | None:
    """Return the line of an answer on the source of record `ref`, None if there is nothing to say.

    An unknown change is mentioned once per record, if it `is_first`.
    """
    facts, edit, newer, older = [], known.edit, known.newer, known.older
    end = ""
    if edit is not None:
        times = "edited" if edit.times == 1 else f"edited {edit.times} times, last"
        facts.append(f"{times} at call {edit.number} ({tool_label(edit.verb)})")
    if newer is not None:
        place = ", unchanged" if newer.is_equal else f", as {newer.ref}" if newer.ref else ""
        facts.append(f"{'read' if known.verb else 'called'} again at call {newer.number}{place}")
    elif older is not None:
        facts.append(f"an older version, of call {older.number}, is {older.ref}")
    elif edit is None and known.is_unclear and is_first:
        facts.append("whether it changed since is not known here")
    if not facts:
        return None
    if edit is not None and (newer is None or newer.number < edit.number):
        end = ": read the file again for its present text"
    elif has_diff and (pair := _pair(known, ref)) is not None:
        end = ': context_diff(old="{}", new="{}")'.format(*pair)
    first = [] if known.number is None else [f"{_FIRST[known.verb]} {known.number}"]
    return f"[{'; '.join([*first, *facts])}{end}]"


def source_note(known: Freshness) -> str:
    """Return the note on a source for the row of a list, empty if there is nothing to say."""
    edit, newer = known.edit, known.newer
    parts = [] if edit is None else [f", edited since, at call {edit.number}"]
    if newer is not None and not newer.is_equal:
        parts.append(f", {'read' if known.verb else 'called'} again at call {newer.number}")
    return "".join(parts)


def _pair(known: Freshness, ref: str) -> tuple[str, str] | None:
    """Return the refs to compare: a record and its last version, or the version before and the record."""
    newer, older = known.newer, known.older
    if newer is not None:
        return (ref, newer.ref) if newer.ref and not newer.is_equal else None
    return (older.ref, ref) if older is not None and older.ref else None
