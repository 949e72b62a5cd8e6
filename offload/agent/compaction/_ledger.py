"""The ledger: a digest of removed messages that is kept in view in their notice, made without a model.

It quotes what an assistant is likely to write again: statements of the user, files, commands with their
exit codes, errors, stored items, URLs, names and numbers, and nothing that the context shows anyway. Each
kind has a share of the budget; entries that are recent, repeated and short are preferred. The lines of an
earlier notice's ledger are read again and merged, so its facts are kept as long as the budget allows.

Each text is scanned once, in linear time, and of a long text only both ends.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from offload.base.text import without_colors
from offload.base.threads.locks import cached
from offload.base.tokens import estimate_tokens
from offload.messages.base import Item
from offload.messages.calls import COMMAND_FIELDS, PATH_FIELDS
from offload.messages.formats import scan_of

RedactText = Callable[[str], str]


class _Section(NamedTuple):
    """The lines of one kind of entry.

    Attributes:
        label: the start of its only line, or the line before its entries.
        share: its part of the budget that remains; the kinds after it get what it does not use.
        mark: the start of each entry's own line; empty if all entries share a line.
    """

    label: str
    share: float
    mark: str = ""


# In the order of the text, and of the choice: a name in a line that was chosen is not repeated. Names are
# last, since there are many, and they fill the rest.
_SECTIONS = {
    "said": _Section("The user said:", 0.6, "- "),
    "written": _Section("Files written:", 0.4),
    "read": _Section("Files read:", 0.5),
    "path": _Section("Other paths:", 0.3),
    "command": _Section("Commands (with the exit code if it is not 0):", 0.6, "$ "),
    "error": _Section("Errors:", 0.3, "! "),
    "stored": _Section("Stored items (id, title):", 0.1, "* "),
    "url": _Section("URLs:", 0.3),
    "name": _Section("Names and numbers:", 1.0),
}
_MARKS = {section.mark: kind for kind, section in _SECTIONS.items() if section.mark}
_LABELS = {section.label: kind for kind, section in _SECTIONS.items() if not section.mark}
_ORDER = {kind: place for place, kind in enumerate(_SECTIONS)}
_SEPARATOR = ", "
_FILES = ("written", "read", "path")

# How likely the assistant writes an entry again, by the writer of its latest mention: measured on recorded
# sessions, as the effect of age is.
_WORTH = {"call": 0.35, "assistant": 0.35, "user": 0.3, "result": 0.1}
_EARLIER = 0.3
_PER_REPEAT, _PER_REPEAT_OF_COMMAND, _MOST_REPEATS = 0.5, 2.0, 5
# After so many messages the part of the worth that ages is half of it; the rest does not age.
_HALF_AGE, _LEAST_AGED = 10, 0.2
# A statement that holds for the rest of a conversation is worth so many others.
_RULE = 3.0

_MOST_CHARS = 40_000
_MOST_ENTRIES = 2_000
# So many entries that do not fit end a choice.
_MOST_MISSES = 50
_LABEL_TOKENS = 8.0
_LONGEST = {"said": 240, "command": 240, "error": 160}
_LEAST_NAME, _LONGEST_NAME, _LONGEST_PATH = 6, 60, 160

_TOKEN = re.compile(r"[A-Za-z0-9_@~$./:+-]{4,}")
_URL = re.compile(r"https?://[^\s\"'<>()\[\]{}`|\\,;]{4,160}")
_EXTENSION = re.compile(r"[^/]*\.[A-Za-z][A-Za-z0-9]{0,7}")
_LINE_NUMBER = re.compile(r":\d[\d:-]*")
_MARKED = re.compile(r"[0-9_/.]|[a-z][A-Z]")
_EXIT = re.compile(r"(?:exit(?:ed with)?|return)[ _]?(?:code|status)?\W{1,4}(\d{1,3})\b", re.IGNORECASE)
_OUTCOME = re.compile(r" \((exit \d{1,3}|failed)\)$")
_TROUBLE = ("Error", "Exception", "error", "FAILED", "FAIL:", "fatal", "panic", "denied", "not found", "错误")
# Words and signs of a statement that holds for the rest of a conversation.
_STANDING = re.compile(
    r"\b(?:never|always|must|should|only|not|don't|no|prefers?|wants?|rather|need|rules?|until|unless|instead"
    r"|now|next|goal|update|moved|changed)\b|\d",
    re.IGNORECASE,
)
_SHELL = re.compile(r"bash|shell|terminal|exec|command|cmd|run", re.IGNORECASE)
_EDIT_FIELDS = (
    *("content", "contents", "file_text", "text", "new_str", "new_string", "newText", "new_source", "edits"),
    *("patch", "diff", "replacement", "replacement_text", "code_edit", "insert_line"),
)


class Mention(NamedTuple):
    """A fact in one message.

    Attributes:
        kind: a key of the sections.
        source: its writer: "user", "assistant", "call" for tool-call arguments, or "result".
        call: the id of the tool call whose command it is.
    """

    kind: str
    text: str
    source: str
    call: str | None = None


class CommandOutcome(NamedTuple):
    """The outcome of the command of a tool call, such as `exit 1`; empty if it succeeded."""

    call: str | None
    text: str


def stored_item(ref: str, title: str) -> Mention:
    """Return the mention of an offloaded item, which the model can still read by its id."""
    return Mention("stored", f"{ref} {title}", "result")


def mentions_of(message: Any, redact: RedactText) -> list[Mention | CommandOutcome]:
    """Return the facts in a message of any format, in order; `redact` is applied to its texts first."""
    return [mention for item in scan_of(message).items for mention in _of_item(item, redact)]


class Ledger:
    """Collects the facts of messages, the oldest first, and renders those that fit."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._commands: dict[str | None, _Entry] = {}
        self._clock = 0

    def add(self, mentions: Iterable[Mention | CommandOutcome]) -> None:
        self._clock += 1
        mentions = list(mentions)
        asked = Counter(m.call for m in mentions if isinstance(m, Mention) and m.kind == "command")
        for mention in mentions:
            if isinstance(mention, CommandOutcome):
                if mention.call in self._commands:
                    self._commands.pop(mention.call).outcome = mention.text
                continue
            entry = self._note(mention.kind, mention.text, _WORTH[mention.source])
            if mention.kind == "command":
                self._commands.pop(mention.call, None)
                # Of two commands with one id it is not known which of them an outcome is of.
                if entry is not None and asked[mention.call] == 1:
                    self._commands[mention.call] = entry

    def add_earlier(self, text: str) -> None:
        """Add the entries of an earlier ledger, a text that `render` returned."""
        for kind, entries in _parsed(text):
            for at, line in enumerate(entries):
                outcome = _OUTCOME.search(line) if kind == "command" else None
                # The last entries of its lines are the latest.
                age = (len(entries) - at) / max(1, len(entries)) * _HALF_AGE
                entry = self._note(kind, line[: outcome.start()] if outcome else line, _EARLIER, age)
                if entry is not None and outcome:
                    entry.outcome = outcome[1]
                if _SECTIONS[kind].mark:
                    for mention in _names(line, "call"):
                        self._note(mention.kind, mention.text, _EARLIER, age)
        self._clock += 1

    def render(self, tokens: float, shown: str) -> str:
        """Return the ledger in at most `tokens`, without what the text `shown` has; "" if empty."""
        most, best = tokens, {kind: self._best(kind, shown) for kind in _SECTIONS}
        while True:
            text = _rendered(best, most)
            # Entries one by one have other tokens than all in one text.
            above = estimate_tokens(text) - tokens
            if above <= 0 or not text:
                return text
            most -= above

    def _best(self, kind: str, shown: str) -> list[_Entry]:
        """Return the entries of a kind that are worth their length most, without those that `shown` has."""
        entries = [entry for entry in self._entries.values() if entry.kind == kind]
        entries.sort(key=lambda entry: -entry.value(self._clock) / len(entry.text))
        return [entry for entry in entries[:_MOST_ENTRIES] if entry.text not in shown]

    def _note(self, kind: str, text: str, worth: float, age: float = 0) -> _Entry | None:
        """Add one mention of an entry; return the entry, None if there are too many of its kind."""
        key = ("file" if kind in _FILES else kind, text)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= _MOST_ENTRIES * len(_SECTIONS):
                return None
            entry = self._entries[key] = _Entry(kind, text)
        # Of a file, that it was written matters more than that it was read or mentioned.
        entry.kind = min(entry.kind, kind, key=_ORDER.__getitem__)
        entry.worth = max(entry.worth, worth)
        entry.count += 1
        entry.at = max(entry.at, self._clock - age)
        return entry


@dataclass
class _Entry:
    kind: str
    text: str
    worth: float = 0.0
    count: int = 0
    at: float = float("-inf")
    outcome: str = ""

    @property
    def shown(self) -> str:
        return f"{self.text} ({self.outcome})" if self.outcome else self.text

    @property
    def tokens(self) -> float:
        """Its tokens, with the sign or the line break that separates it."""
        return self._text_tokens + (2 if _SECTIONS[self.kind].mark else 0.5)

    @cached
    def _text_tokens(self) -> float:
        return estimate_tokens(self.text)

    def value(self, now: float) -> float:
        """Return how likely it is written again; the scale is the same for entries of one kind only."""
        per_repeat = _PER_REPEAT_OF_COMMAND if self.kind == "command" else _PER_REPEAT
        value = self.worth * (1 + per_repeat * (min(self.count, _MOST_REPEATS) - 1))
        if self.kind == "said" and _STANDING.search(self.text):
            value *= _RULE
        age = max(0.0, now - self.at) / _HALF_AGE
        return value * (_LEAST_AGED + (1 - _LEAST_AGED) / (1 + age))


def _rendered(best: Mapping[str, Sequence[_Entry]], tokens: float) -> str:
    """Return sections of the best entries of each kind, in about `tokens`."""
    chosen: dict[str, list[_Entry]] = {kind: [] for kind in _SECTIONS}
    remaining = float(tokens)
    for is_last in (False, True):
        for kind, section in _SECTIONS.items():
            most = remaining if is_last else remaining * section.share
            remaining -= _choose(kind, most, best[kind], chosen)
    return "\n".join(line for kind, entries in chosen.items() for line in _lines_of(kind, entries))


def _choose(kind: str, tokens: float, entries: Sequence[_Entry], chosen: Mapping[str, list[_Entry]]) -> float:
    """Add entries of a kind to `chosen` that no chosen one has in its text; return their tokens."""
    others = "\n".join(entry.text for entries in chosen.values() for entry in entries)
    spent = 0.0 if chosen[kind] else _LABEL_TOKENS
    before, misses = len(chosen[kind]), 0
    for entry in entries:
        if entry.text in others:
            continue
        if spent + entry.tokens <= tokens:
            chosen[kind].append(entry)
            spent += entry.tokens
        elif (misses := misses + 1) == _MOST_MISSES:
            break
    return spent if len(chosen[kind]) > before else 0.0


def _lines_of(kind: str, entries: Sequence[_Entry]) -> list[str]:
    section = _SECTIONS[kind]
    texts = [entry.shown for entry in sorted(entries, key=lambda entry: entry.at)]
    if not texts:
        return []
    if section.mark:
        return [section.label, *(section.mark + text for text in texts)]
    return [f"{section.label} {_SEPARATOR.join(texts)}"]


def _parsed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield kind and entries of each section of a ledger; other lines are ignored."""
    marked: dict[str, list[str]] = {}
    for line in text.split("\n"):
        kind = _MARKS.get(line[:2])
        if kind is not None:
            marked.setdefault(kind, []).append(line[2:])
        else:
            label, _, rest = line.partition(": ")
            if kind := _LABELS.get(f"{label}:"):
                yield kind, rest.split(_SEPARATOR)
    yield from marked.items()


def _of_item(item: Item, redact: RedactText) -> Iterator[Mention | CommandOutcome]:
    if item.item_type == "tool_call":
        yield from _of_call(item, redact)
    elif item.item_type == "tool_result":
        yield from _of_result(item, without_colors(redact(item.text)))
    elif item.item_type == "user_message":
        text = redact(item.text)
        yield from _statement(text)
        yield from _names(text, "user")
    elif item.item_type == "assistant_message":
        yield from _names(redact(item.text), "assistant")


def _statement(text: str) -> Iterator[Mention]:
    """Yield what the user says in a text; blocks in angle brackets are those of a program."""
    longest = _LONGEST["said"]
    line = " ".join(text[:_MOST_CHARS].split())
    if line and not line.startswith(("<", "[Offloaded: ", "\\[Offloaded: ")):
        yield Mention("said", line if len(line) <= longest else line[: longest - 4] + " […]", "user")


def _of_call(item: Item, redact: RedactText) -> Iterator[Mention]:
    fields = _fields_of(item)
    path = next((value for name in PATH_FIELDS if isinstance(value := fields.get(name), str)), "")
    command = next((value for name in COMMAND_FIELDS if (value := fields.get(name))), "")
    if path := redact(path).strip():
        if len(path) <= _LONGEST_PATH and "\n" not in path:
            is_written = any(name in fields for name in _EDIT_FIELDS)
            yield Mention("written" if is_written else "read", path, "call")
    elif command:
        text = command if isinstance(command, str) else " ".join(_strings(command))
        line = redact(text).strip().partition("\n")[0].strip()
        if 0 < len(line) <= _LONGEST["command"]:
            yield Mention("command", line, "call", item.tool_use_id)
    for text in _strings(fields):
        yield from _names(redact(text), "call")


def _fields_of(item: Item) -> Mapping[str, Any]:
    """Return tool-call arguments by name; a lone string has no name."""
    text = item.text
    try:
        fields = json.loads(text) if item.form is not None else None
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        return fields
    if text.startswith("[Offloaded: "):
        return {"": text}
    if _SHELL.search(item.tool_name or ""):
        return {"command": text}
    return {"path": text} if _is_path(text) else {"": text}


def _strings(value: Any) -> Iterator[str]:
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            values += reversed(value.values())
        elif isinstance(value, list):
            values += reversed(value)


def _of_result(item: Item, text: str) -> Iterator[Mention | CommandOutcome]:
    code = _EXIT.search(f"{text[:300]}\n{text[-300:]}")
    number = code[1] if code else ""
    is_failure = item.is_error or number not in ("", "0")
    if is_failure:
        yield CommandOutcome(item.tool_use_id, f"exit {number}" if number else "failed")
        yield from _trouble(text)
    elif number:
        yield CommandOutcome(item.tool_use_id, "")
    yield from _names(text, "result")


def _trouble(text: str) -> Iterator[Mention]:
    """Yield one line of a failed result: the last with a word of failure, or the first."""
    lines = [line.strip() for line in (text[:4_000] + "\n" + text[-4_000:]).split("\n") if line.strip()]
    telling = [line for line in lines if any(word in line for word in _TROUBLE)]
    for line in telling[-1:] or lines[:1]:
        yield Mention("error", line[: _LONGEST["error"]], "result")


def _names(text: str, source: str) -> Iterator[Mention]:
    """Yield the URLs, paths, names and numbers in a text, each once."""
    if len(text) > _MOST_CHARS:
        text = f"{text[: _MOST_CHARS // 2]}\n{text[-_MOST_CHARS // 2 :]}"
    if "://" in text:
        urls = dict.fromkeys(url.rstrip(".:") for url in _URL.findall(text))
        yield from (Mention("url", url, source) for url in urls)
        text = _URL.sub(" ", text)
    for name in dict.fromkeys(map(_as_name, dict.fromkeys(_TOKEN.findall(text)))):
        if _is_path(name):
            yield Mention("path", name, source)
        elif _LEAST_NAME <= len(name) <= _LONGEST_NAME and _MARKED.search(name):
            yield Mention("name", name, source)


def _as_name(token: str) -> str:
    """Return a token without a line number and without signs around it."""
    number = _LINE_NUMBER.search(token) if ":" in token else None
    if number and (number.end() == len(token) or _is_path(token[: number.start()])):
        token = token[: number.start()]
    return token.rstrip("./:+-$").lstrip(":+-")


def _is_path(token: str) -> bool:
    """Return whether a text is one path: with a slash, and an extension at its end."""
    folder, slash, name = token.rpartition("/")
    is_plain = len(token) <= _LONGEST_PATH and "\n" not in token and "//" not in folder
    return bool(slash) and is_plain and _EXTENSION.fullmatch(name) is not None
