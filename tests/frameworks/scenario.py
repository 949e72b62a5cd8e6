"""One agent run without a framework: the actions of its model, and the input that the model must get.

A model asks a tool for a report of 90 KB, searches it for the needle, reads the line that the search
names, and ends. A test gives `Script.reply` to a fake model of its framework, as the answer to the
texts that the model was sent, and has `QUERY` return `report(owner)`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offload import Offloader, OffloadPolicy
from offload.records.session.reader import SessionReader

# Offloaded when it is appended; a tool that reads is seen once in full first.
QUERY = "query_sales"
READER = "read_report"
# The default keeps a file, and the arguments of a call, for as long as the model works on them.
_ONCE = {"min_tokens": 1000, "after_replies": 1}
SHOWN_ONCE = OffloadPolicy.model_validate(
    {"types": {"tool_result": _ONCE, "tool_call": _ONCE}, "file_readers": _ONCE}
)
# So many that deepagents itself would not leave the report in its message, and no more than the default
# policy lets a model see at once.
ENTRIES = 1700
NEEDLE_LINE = 1271
QUESTION = "How did the sales go?"
ANSWER = "They went well."

_TOLD = re.compile(r"^Look into ([a-z]{10,20})\.$", re.MULTILINE)
_REF = re.compile(r"^\[Offloaded: .* id ([a-z]{10,20})\]$", re.MULTILINE)


def calls_of(off: Any) -> list[str | None]:
    """Return the call ids of the session's records, oldest first, from their headers."""
    reader = SessionReader(off.store, off.session)
    return [reader.open(info).header.tool_use_id for info in reader.infos()]


def agents_of(off: Any) -> list[str | None]:
    """Return the agents that stored the session's records, oldest first, from their headers."""
    reader = SessionReader(off.store, off.session)
    return [reader.open(info).header.agent for info in reader.infos()]


def needle(owner: str) -> str:
    """Return the one line of `report(owner)` that no preview shows."""
    return f"entry {NEEDLE_LINE:05} needle of {owner}: 31415"


def report(owner: str = "alice") -> str:
    """Return a text of about 90 KB."""
    lines = [
        f"entry {n:05} account={n * 7919 % 100003:06} amount={n * 31 % 977:03} state=settled"
        for n in range(1, ENTRIES + 1)
    ]
    lines[NEEDLE_LINE - 1] = needle(owner)
    return "\n".join(lines)


@dataclass(frozen=True)
class Call:
    """A tool call of the model."""

    name: str
    arguments: dict[str, Any]
    id: str


# What the model does next, given the texts that it was sent.
Turn = Callable[[Sequence[str]], "Call | list[Call] | str"]


@dataclass
class Script:
    """A scripted model: its turns, and the input of each turn.

    `usages` has the tokens that its provider's cache read and wrote for each turn, if it has a cache.
    `system` has the system prompt of each request, `offered` the schemas of the last one's tools, by name.
    """

    turns: Sequence[Turn]
    seen: list[list[str]] = field(default_factory=list)
    usages: Sequence[tuple[int, int]] = ()
    system: list[str] = field(default_factory=list)
    offered: dict[str, Any] = field(default_factory=dict)

    def reply(self, texts: Sequence[str], system: str | None = None) -> list[Call] | str:
        """Return the model's next answer: tool calls, or a text that ends the run."""
        self.seen.append(list(texts))
        self.system.append(system or "")
        said = self.turns[len(self.seen) - 1](texts)
        return [said] if isinstance(said, Call) else said

    def usage(self) -> tuple[int, int]:
        """Return the tokens that the cache read and wrote for the last reply."""
        return self.usages[len(self.seen) - 1] if self.usages else (0, 0)

    def shown(self, turn: int) -> str:
        """Return all that the model was sent before its answer number `turn`, from 1."""
        return "\n".join(self.seen[turn - 1])


def chat_calls(said: list[Call] | str) -> list[Any]:
    """Return the calls of an answer as Chat Completions has them."""
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in ([] if isinstance(said, str) else said)
    ]


def refs(texts: Sequence[str]) -> list[str]:
    """Return the refs of the placeholders in `texts`, in order."""
    return [ref for text in texts for ref in _REF.findall(text)]


def ask(tool: str = QUERY, call: str = "call_0") -> Turn:
    """The model asks for the report, each time in other words."""
    return lambda _: Call(tool, {} if call == "call_0" else {"note": call}, call)


def search(texts: Sequence[str]) -> Call:
    """The model searches the item of the last placeholder."""
    return Call("context_grep", {"pattern": "needle of", "id": refs(texts)[-1]}, "call_search")


def read(texts: Sequence[str]) -> Call:
    """The model reads the line around the needle."""
    part = f"{NEEDLE_LINE - 1}-{NEEDLE_LINE + 1}"
    return Call("context_read", {"id": refs(texts)[-1], "part": part}, "call_read")


def tell(texts: Sequence[str]) -> str:
    """The model names the last id that it saw to another agent."""
    named = [ref for text in texts for ref in (*_REF.findall(text), *_TOLD.findall(text))]
    return f"Look into {named[-1]}."


# The model lists the items of its session, and searches them all.
LOOK: list[Turn] = [
    lambda _: Call("context_list", {}, "l"),
    lambda _: Call("context_grep", {"pattern": "needle of"}, "g"),
]


def search_told(texts: Sequence[str]) -> Call:
    """The model searches the item that another agent named last."""
    [*_, ref] = [ref for text in texts for ref in _TOLD.findall(text)]
    return Call("context_grep", {"pattern": "needle of", "id": ref}, "call_told")


def end(_: Sequence[str]) -> str:
    """The model answers."""
    return ANSWER


def whole_run() -> Script:
    """Return the script of the whole run: ask, search, read, end."""
    return Script([ask(), search, read, end])


def run_with_a_miss() -> Script:
    """Return the script of the whole run, whose third request the provider's cache misses."""
    return Script([ask(), search, read, end], usages=[(0, 5000), (5000, 300), (0, 5600), (5600, 300)])


def missed_tokens(monkeypatch: Any) -> list[int]:
    """Return a list that gets the missed tokens of each usage that is reported to an offloader."""
    missed: list[int] = []
    report_usage = Offloader.report_usage

    def note(self: Offloader, usage: Any, **options: Any) -> Any:
        found = report_usage(self, usage, **options)
        missed.extend([] if found is None else [found.missed])
        return found

    monkeypatch.setattr(Offloader, "report_usage", note)
    return missed


def check_whole_run(script: Script, owner: str = "alice") -> None:
    """Check what the model was sent in `whole_run`."""
    assert len(script.seen) == 4
    assert refs(script.seen[1])
    assert needle(owner) not in script.shown(2)
    assert len(script.shown(2)) < 10_000
    # Earlier input must not change, or the provider's cache is lost.
    for before, after in zip(script.seen[1:], script.seen[2:], strict=False):
        assert after[: len(before)] == before
    assert needle(owner) in "\n".join(script.seen[2][len(script.seen[1]) :])
    last = "\n".join(script.seen[3][len(script.seen[2]) :])
    assert all(f"entry {n:05}" in last for n in (NEEDLE_LINE - 1, NEEDLE_LINE, NEEDLE_LINE + 1))
    assert len(script.shown(4)) < 20_000


def in_new_process(program: str, given: Any) -> Any:
    """Run `program` with `given` as JSON on its input; return the JSON that it printed last."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def import_error(integration: str, without: str) -> str:
    """Return the error of importing an integration without a module of its framework."""
    program = f"""
import json, sys
sys.modules["{without}"] = None
from offload import MissingExtraError
try:
    import offload.integrations.{integration}
except MissingExtraError as error:
    print(json.dumps(str(error)))
"""
    return str(in_new_process(program, None))
