"""What the scripted agent knows: what stands in its messages, and how it reads more of it."""

from __future__ import annotations

import json
import re
from html import unescape
from itertools import count
from typing import Any, NamedTuple

from peers._editing import FAILED, PAGE_LINES

# Ops with a result that has a number.
TOOL_OPS = ("call", "read", "edit")
# What a notice says of the conversation that it replaces; the ledger of this library names the files.
_DONE, _STORED = re.compile(r"(\d+) calls were done"), re.compile(r"Result (\d+) is stored: (\S+)")
_LEDGER = re.compile(r"^\* (\w+) (.+)$", re.MULTILINE)

Message = dict[str, Any]
Step = dict[str, Any]


class Sight(NamedTuple):
    """A text in view that may show a part of a file.

    Attributes:
        path: the file.
        text: the text.
        version: the number of the result as of which it shows the file.
        at: its place in the conversation.
    """

    path: str
    text: str
    version: int
    at: int


class Known(NamedTuple):
    """What the messages say.

    Attributes:
        shown: the texts of results, by their number.
        reads: what was read back: the call, its answer, and its place in the conversation.
        pages: the same of pages of files that were read again.
        reports: reports of other agents.
        stored: the names of the results that a notice names, by their number.
        sights: texts that may show a part of a file.
        failed: the place of each edit that failed, with its number.
        calls: the number of results so far.
    """

    shown: dict[int, str]
    reads: list[tuple[Step, str, int]]
    pages: list[tuple[Step, str, int]]
    reports: list[str]
    stored: dict[int, str]
    sights: list[Sight]
    failed: list[tuple[int, int]]
    calls: int

    def of(self, result: int, verb: str = "") -> list[tuple[Step, str]]:
        """Return what was read back of a result."""
        return [
            (call, text)
            for call, text, _ in self.reads
            if call["of"] == result and verb in ("", call["verb"])
        ]


def known_of(messages: list[Message], task: Step) -> Known:
    """Return what the messages after the first one say."""
    notice = messages[0]["content"] if messages and messages[0]["role"] == "user" else ""
    given, done = task.get("given", []), _DONE.findall(notice)
    calls = int(done[-1]) if done else len(given)
    known = Known(dict(enumerate(given)), [], [], [], _stored(notice, task, calls), [], [], calls)
    exchanges = messages[bool(notice) :]
    for at, asked, answered in zip(count(), exchanges[::2], exchanges[1::2], strict=False):
        known = _after(known, json.loads(asked["content"]), answered["content"], at)
    return known


def _after(known: Known, step: Step, text: str, at: int) -> Known:
    # Some tools answer with JSON or XML, in which a text is escaped: a model reads through that.
    plain = unescape(text.replace("\\n", "\n").replace('\\"', '"'))
    is_failed = step["tool"] == "edit" and text.startswith(FAILED)
    if step["tool"] == "delegate":
        known.reports.append(text)
    elif is_failed:
        known.failed.append((at, known.calls))
    elif step["tool"] == "read back":
        known.reads.append((step, plain, at))
        if "path" in step:
            known.sights.append(Sight(step["path"], plain, step["of"], at))
    elif "path" in step:
        known.sights.append(Sight(step["path"], step.get("new", plain), known.calls, at))
        if "first" in step:
            known.pages.append((step, plain, at))
    if step["tool"] in TOOL_OPS and "first" not in step and not is_failed:
        known.shown[known.calls] = text
        return known._replace(calls=known.calls + 1)
    return known


def _stored(notice: str, task: Step, calls: int) -> dict[int, str]:
    """Return the names of results: the ledger has those of a file in their order."""
    stored = {int(number): ref for number, ref in _STORED.findall(notice)}
    names: dict[str, list[str]] = {}
    for ref, title in _LEDGER.findall(notice):
        names.setdefault(title, []).append(ref)
    for path, refs in names.items():
        numbers = [
            number
            for number, op in enumerate(tool_ops(task)[:calls])
            if op.get("path") == path and op["op"] == "read"
        ]
        if len(numbers) == len(refs):
            stored |= zip(numbers, refs, strict=True)
    return stored


def tool_ops(task: Step) -> list[Step]:
    """Return the ops of a task that have a result, in the order of their numbers."""
    return [op for op in task["ops"] if op["op"] in TOOL_OPS]


def next_page(known: Known, of: int, task: Step, lines: int = PAGE_LINES) -> Step | None:
    """Return the next page of a result, `lines` lines after the last or by characters; None at its end."""
    for verb in ("lines", "chars"):
        if verb not in task["verbs"]:
            continue
        pages = known.of(of, verb)
        is_over = pages and (pages[-1][1].startswith(FAILED) or pages[-1][1] in [t for _, t in pages[:-1]])
        if not is_over:
            step = lines if verb == "lines" else task["page_chars"]
            return read_back(known, of, verb, len(pages) * step)
    return None


def read_back(known: Known, of: int, verb: str, argument: str | int, more: str = "") -> Step:
    """Return a call that reads a part of a result."""
    stored = {"ref": known.stored[of]} if of in known.stored else {}
    return {"tool": "read back", "of": of, "verb": verb, "argument": argument, "more": more, **stored}
