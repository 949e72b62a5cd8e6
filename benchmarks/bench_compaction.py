"""Compaction: facts of removed messages that the assistant writes again, and how many of them are in view.

A real `ContextManager` goes through each recorded session, at windows of 20,000 and 80,000 tokens, with the
ledger alone and with a summary that says nothing. After each compaction: of the facts in all messages that
were removed so far and that the assistant writes again later, the share in the context now, and the share
that one search of the session finds. A fact is a path (a token with a slash and an extension), a command (the
whole first line of a shell call), a number or an identifier, as `preview_recall.py` counts them. The folder
of transcripts is named by OFFLOAD_TRANSCRIPTS, or is next to the repository as `shared/transcripts`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property  # noqa: TID251 # no child of a fork uses it
from pathlib import Path
from typing import Any, Self

from _measure import Figure, run

from offload import AgentConfig, ContextManager, Offloader
from offload.messages.context import EventType

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_WINDOWS = (20_000, 80_000)
_QUICK_EVERY = 8
_KINDS = ("paths", "commands", "numbers", "identifiers")
# Kind → the least share in view. All of them must be one search away.
_BUDGETS = {"paths": 0.75, "commands": 0.5}
_SUMMARY = "<summary>The assistant worked on the task.</summary>"

_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:\-]{5,80}")
_PATH = re.compile(r"[A-Za-z0-9_.~/@+-]*/[A-Za-z0-9_.@+-]*\.[A-Za-z][A-Za-z0-9]{0,7}\b")
_SHORTEST, _LONGEST = 6, 120
_MARKED = re.compile(r"\d|[_/.]|[a-z][A-Z]")

Fact = tuple[str, str]


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    folder = Path(os.environ.get("OFFLOAD_TRANSCRIPTS", _SHARED / "transcripts"))
    files = sorted((folder / "trajectories").rglob("*.json")) if folder.is_dir() else []
    if not files:
        print(f"no transcripts in {folder}: set OFFLOAD_TRANSCRIPTS to a folder of them")
        return
    sessions = [Session(file) for file in files[:: _QUICK_EVERY if is_quick else 1]]
    ways: dict[str, Callable[[list[Any]], str] | None] = {
        "ledger alone": None,
        "with a summary": _empty_summary,
    }
    for window in _WINDOWS:
        for way, summarizer in ways.items():
            scores = {session: Replay(session, window, summarizer).run() for session in sessions}
            yield from _rows(f"window of {window:,}, {way}", scores)


def _empty_summary(_: list[Any]) -> str:
    return _SUMMARY


@dataclass
class Score:
    """Facts that were removed and written again: all, those in view, those in view or in a record."""

    compactions: int = 0
    written: Counter[str] = field(default_factory=Counter)
    in_view: Counter[str] = field(default_factory=Counter)
    one_away: Counter[str] = field(default_factory=Counter)

    def add(self, facts: Iterable[Fact], view: str, records: str) -> None:
        """Count the facts after one compaction."""
        self.compactions += 1
        for kind, text in facts:
            is_in_view = text in view
            self.written[kind] += 1
            self.in_view[kind] += is_in_view
            self.one_away[kind] += is_in_view or text in records

    def __iadd__(self, other: Score) -> Self:
        self.compactions += other.compactions
        self.written += other.written
        self.in_view += other.in_view
        self.one_away += other.one_away
        return self


class Session:
    """A recorded session: its messages, and the facts of each."""

    def __init__(self, file: Path) -> None:
        document = json.loads(file.read_text("utf-8"))
        self.name, self.source = file.stem, file.parent.name
        self.messages: list[dict[str, Any]] = document["messages"]

    @cached_property
    def facts(self) -> list[set[Fact]]:
        """The facts of each message."""
        return [_facts(message) for message in self.messages]

    @cached_property
    def later(self) -> list[set[Fact]]:
        """The facts that the assistant writes from each message on."""
        later = [set[Fact]()]
        for message, facts in zip(reversed(self.messages), reversed(self.facts), strict=True):
            later.append(later[-1] | facts if message["role"] == "assistant" else later[-1])
        return later[::-1]


class Replay:
    """A session in a context manager; `score` counts after each compaction.

    Args:
        session: the session.
        window: the context window in tokens.
        summarizer: of the context manager.
    """

    def __init__(self, session: Session, window: int, summarizer: Callable[[list[Any]], str] | None) -> None:
        self.score = Score()
        self._session = session
        self._off = Offloader("memory://", session=session.name)
        config = AgentConfig(window_tokens=window, resumable=False)
        self._manager = ContextManager(self._off, config, summarizer=summarizer)
        self._is_compacted = False
        self._manager.events.subscribe(self._note, EventType.CONTEXT_COMPACTED)
        self._records: dict[str, str] = {}

    def run(self) -> Score:
        """Send all messages of the session; return the score."""
        for index, message in enumerate(self._session.messages):
            if message["role"] == "assistant":
                self._manager.before_model_call()
                self._count(index)
                self._manager.after_model_call(message)
                self._count(index + 1)
            else:
                self._manager.add(message)
        return self.score

    def _note(self, _: object) -> None:
        self._is_compacted = True

    def _count(self, upto: int) -> None:
        """Count if there was a compaction since the last time; `upto` messages were sent."""
        if not self._is_compacted:
            return
        self._is_compacted = False
        view = self._manager.messages
        kept = self._kept(self._session.messages[:upto], view)
        removed = set[Fact]().union(*(self._session.facts[i] for i in range(upto) if i not in kept))
        texts = "\n".join(text for message in view for text in _texts(message))
        self.score.add(removed & self._session.later[upto], texts, self._stored())

    def _kept(self, messages: list[Any], view: list[Any]) -> set[int]:
        """Return which messages are in view, whole or as placeholders."""
        places = {id(message): i for i, message in enumerate(messages)}
        by_content: dict[str, list[int]] = {}
        for i, message in enumerate(messages):
            by_content.setdefault(json.dumps(message), []).append(i)
        kept: set[int] = set()
        for message in view:
            if id(message) in places:
                kept.add(places[id(message)])
            elif not str(message["content"]).startswith("[Compacted "):
                kept.update(by_content[json.dumps(self._off.restore([message])[0])])
        return kept

    def _stored(self) -> str:
        """Return the texts of all records, JSON lines without escapes."""
        for info in self._off.records():
            if info.ref not in self._records:
                lines = b"".join(self._off.content(info.ref)).decode().split("\n")
                self._records[info.ref] = "\n".join(map(_plain, lines))
        return "\n".join(self._records.values())


def _plain(line: str) -> str:
    """Return the strings in a line of JSON, also those in JSON within it; other lines as they are."""
    if not line.startswith("{"):
        return line
    try:
        return "\n".join([line, *map(_plain, _strings(json.loads(line)))])
    except ValueError:
        return line


def _facts(message: dict[str, Any]) -> set[Fact]:
    facts: set[Fact] = {("commands", line) for line in _commands(message)}
    for text in _texts(message):
        paths = {path.lstrip("./") for path in _PATH.findall(text) if len(path) <= _LONGEST}
        facts |= {("paths", path) for path in paths if "/" in path}
        for token in _TOKEN.findall(text):
            name = token.strip("./:-")
            if len(name) >= _SHORTEST and _MARKED.search(name) and not _PATH.search(name):
                is_number = not re.search("[A-Za-z]", name)
                facts.add(("numbers" if is_number else "identifiers", name))
    return facts


def _calls(message: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for block in message["content"] if isinstance(message.get("content"), list) else ():
        if block.get("type") == "tool_use":
            yield block["name"], block["input"]
    for call in message.get("tool_calls") or ():
        try:
            yield call["function"]["name"], json.loads(call["function"]["arguments"])
        except ValueError:
            yield call["function"]["name"], {"raw": call["function"]["arguments"]}


def _commands(message: dict[str, Any]) -> Iterator[str]:
    for _, arguments in _calls(message):
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if isinstance(command, str) and "path" not in arguments and command.strip():
            yield command.strip().split("\n")[0].strip()


def _texts(message: dict[str, Any]) -> Iterator[str]:
    yield from _strings(message.get("content"))
    for _, arguments in _calls(message):
        yield from _strings(arguments)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and value.get("type") in ("image", "document"):
        return
    elif isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        for part in parts:
            yield from _strings(part)


def _rows(name: str, scores: dict[Session, Score]) -> Iterator[Figure]:
    total = Score()
    by_source: dict[str, Score] = {}
    for session, score in scores.items():
        total += score
        one = by_source.setdefault(session.source, Score())
        one += score
    for kind in _KINDS:
        at_least = _BUDGETS.get(kind)
        yield _figure(f"{name}: {kind} in view", total, kind, at_least)
        for source, score in by_source.items():
            if score.written[kind]:
                yield _figure(f"  {kind} in view, {source}", score, kind)
    written, away = total.written.total(), total.one_away.total()
    yield Figure(f"{name}: in view or one search away", away / max(1, written), "", at_least=1)


def _figure(name: str, score: Score, kind: str, at_least: float | None = None) -> Figure:
    share = score.in_view[kind] / max(1, score.written[kind])
    detail = f"{score.in_view[kind]:,} of {score.written[kind]:,}, {score.compactions} compactions"
    return Figure(name, share, "", at_least=at_least, detail=detail)


if __name__ == "__main__":
    run(__doc__, figures)
