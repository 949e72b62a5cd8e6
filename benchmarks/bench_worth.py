"""Value of offloading: input of whole sessions under each policy, and facts still shown by previews.

Every answer of the assistant is one request that sends the conversation again; text that equals the last
request from its beginning on is cached. The cost includes read backs and is relative to no offloading; after
clearing without a store, a read back means that the tool runs again. For another library, a result is
replaced as that library does it with its defaults, in a separate environment. The measures are the programs
`session_cost.py` and `preview_recall.py` in the folder OFFLOAD_MEASURE, or in `shared/measure` next to the
repository.
`[--quick] [--json FILE] [--cached PRICE] [--new PRICE]`
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

from bench_peers import Lab, Task
from peers._conversations import SHARED, folder
from peers._environments import CANDIDATES, Candidate, make_environments, versions
from peers._tables import markdown

from offload import OffloadPolicy
from offload.policy import PolicyName

_LEAST_CHARS, _RECALL_CHARS = 1_000, 5_000
_QUICK_EVERY = 4
_CHARS_PER_TOKEN = 3.6  # As `session_cost.py` counts.
_CLEARED = "[cleared]"

# Candidate → the file and the names of its defaults in its installed source.
_DEFAULTS = {
    "strands": (
        "strands/vended_plugins/context_offloader/plugin.py",
        ("_DEFAULT_MAX_RESULT_TOKENS", "_DEFAULT_PREVIEW_TOKENS"),
    ),
    "deepagents": ("deepagents/middleware/filesystem.py", ("tool_token_limit_before_evict",)),
    "pydantic-ai-harness": ("pydantic_ai_harness/tool_output_limits/_capability.py", ("_DEFAULT_THRESHOLD",)),
    "agno": ("agno/offload/store.py", ("READ_MAX_CHARS", "DEFAULT_PREVIEW_LINES", "DEFAULT_PREVIEW_CHARS")),
    "ctxtual": ("ctxtual/mcp/offload.py", ("threshold",)),
    "LangChain clearing": ("langchain/agents/middleware/context_editing.py", ("trigger", "keep")),
}

Rows = Sequence[tuple[int, Any, str, str]]
Policy = Callable[[Any, int, Rows, Any, int], list[str]]
Place = tuple[str, int, Any]


@dataclass(frozen=True, slots=True)
class Default:
    """One default of another library.

    Attributes:
        name: its name.
        value: its value.
        line: its line in the file.
    """

    name: str
    value: int
    line: int


@dataclass
class Way:
    """One policy over all sessions.

    Attributes:
        make: returns the policy for a session.
        source: its description, or the places of its defaults.
        tokens: tokens of input of all requests, read backs not counted.
        kept: the first replacement of each result.
    """

    make: Callable[[str], Policy]
    source: str
    tokens: float = 0
    kept: dict[Place, str] = field(default_factory=dict)

    def watched(self, session: str) -> Policy:
        """Return the policy for a session, its requests counted and its replacements noted."""
        policy = self.make(session)

        def send(doc: Any, upto: int, rows: Rows, names: Any, turn: int) -> list[str]:
            sent = policy(doc, upto, rows, names, turn)
            self.tokens += (sum(map(len, sent)) + len(doc.get("system") or "")) / _CHARS_PER_TOKEN
            for text, (message, block, kind, whole) in zip(sent, rows, strict=False):
                if kind == "result" and text != whole:
                    self.kept.setdefault((session, message, block), text)
            return sent

        return send


def main() -> None:
    """Simulate every session under every policy and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every fourth session")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--cached", type=float, default=0.1, help="price of a token that is cached")
    parser.add_argument("--new", type=float, default=1.25, help="price of any other token")
    options = parser.parse_args()
    measure = Path(os.environ.get("OFFLOAD_MEASURE", SHARED / "measure"))
    if not (measure / "session_cost.py").is_file() or not folder().is_dir():
        print(f"not measured: {measure} and {folder()} are not both there")
        rows = []
    else:
        sys.path.insert(0, str(measure))
        rows = _measure(options.cached, options.new, _QUICK_EVERY if options.quick else 1)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _measure(cached: float, new: float, every: int) -> list[dict[str, Any]]:
    costs: Any = importlib.import_module("session_cost")
    recall: Any = importlib.import_module("preview_recall")
    costs.CACHED, costs.NEW = cached, new
    sessions = list(costs.sessions(folder()))[::every]
    facts = _facts(recall, {doc["id"] for _, doc in sessions})
    print(f"{len(sessions)} sessions; a token costs {cached:g} cached, {new:g} else")
    base, cells, rows = 0.0, [], []
    for name, way in _ways(costs, recall, sessions).items():
        done = [costs.cost(doc, way.watched(doc["id"])) for _, doc in sessions]
        total = {key: sum(one[key] for one in done) for key in done[0]}
        base = base or total["cost"]
        seen = recall.score((*facts[at], kept) for at, kept in way.kept.items() if at in facts)
        cells.append([name, *_cells(way, total, total["cost"] / base, seen), way.source])
        print(f"  {name}: {total['cost'] / base:.3f}", flush=True)
        figures = {"tokens": way.tokens, **total, **seen, "source": way.source}
        cost = {"value": total["cost"] / base, "unit": "x", "detail": json.dumps(figures), "verdict": ""}
        rows.append({"name": f"{name}: input cost of whole sessions / without offloading", **cost})
    print(f"\n{', '.join(f'{name} {version}' for name, version in versions().items())}\n")
    print(markdown(_HEAD, cells))
    return rows


_HEAD = (
    "",
    "cost",
    "tokens sent",
    "results replaced",
    "read backs",
    "file reads that left, seen in full",
    "facts named",
    "facts in context",
    "characters left of a result",
    "defaults",
)


def _cells(way: Way, total: dict[str, Any], cost: float, seen: dict[str, Any]) -> list[str]:
    plain = [f"{cost:.3f}", f"{way.tokens / 10**6:.1f} M", str(total["replaced"]), str(total["reads"])]
    plain.append(f"{total['seen']} of {total['readers']}" if total["readers"] else "none left")
    if not seen["results"]:
        return [*plain, "-", "-", "-"]
    shown = [f"{seen[key]:.2f} of {seen['results']}" for key in ("macro", "context_macro")]
    return [*plain, *shown, f"{seen['chars_kept_mean']:,.0f}"]


def _facts(recall: Any, wanted: set[str]) -> dict[Place, tuple[str, set[str]]]:
    """Return text and facts of the large results: names in them that the assistant writes later."""
    samples = recall.samples(folder(), _RECALL_CHARS)
    return {(doc["id"], i, j): (text, facts) for doc, i, j, text, facts in samples if doc["id"] in wanted}


def _ways(costs: Any, recall: Any, sessions: Iterable[tuple[str, Any]]) -> dict[str, Way]:
    ways = {"no offloading": Way(lambda _: costs.Plain(10**12, None), "")}
    for name in get_args(PolicyName):
        policy = OffloadPolicy.preset(name)
        ways[f"offload, {name}"] = Way(partial(costs.Library, policy=policy), "a preset")
    texts = {
        text
        for _, doc in sessions
        for _, _, kind, text in recall.events(doc)
        if kind == "result" and len(text) >= _LEAST_CHARS
    }
    make_environments()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab(Path(scratch), "http://127.0.0.1:9")
        for candidate in CANDIDATES:
            if candidate.name in _DEFAULTS:
                ways[candidate.name] = _way_of(lab, candidate, sorted(texts))
    return ways


def _way_of(lab: Lab, candidate: Candidate, texts: list[str]) -> Way:
    """Return what another library does at its defaults, as it did it."""
    file, names = _DEFAULTS[candidate.name]
    defaults = _defaults_of(candidate, file, names)
    source = ", ".join(f"{d.name} {d.value:,} ({file}:{d.line})" for d in defaults)
    if candidate.name == "LangChain clearing":
        trigger, keep = (default.value for default in defaults)
        return Way(lambda _: _clearing(trigger, keep), source)
    path = lab.folder / "results.json"
    path.write_text(json.dumps(texts), encoding="utf-8")
    task: Task = {"task": "defaults", "texts": str(path)}
    answer = lab.ask(candidate, task)[0]
    if "shown" not in answer:
        raise RuntimeError(f"{candidate.name}: {answer['state']}")
    left = dict(zip(texts, answer["shown"], strict=True))
    return Way(lambda _: _replacing(left), source)


def _defaults_of(candidate: Candidate, file: str, names: Iterable[str]) -> list[Default]:
    path = next(candidate.python.parents[1].glob(f"lib/*/site-packages/{file}"))
    source, found = path.read_text("utf-8"), []
    for name in names:
        match = re.search(rf"^\s*{name}\b[^=\n]*= ?([\d_]+)", source, re.MULTILINE)
        if match is None:
            raise LookupError(f"{file} names no default {name}")
        line = source.count("\n", 0, match.start(1)) + 1
        found.append(Default(name, int(match[1]), line))
    return found


def _replacing(left: dict[str, str]) -> Policy:
    """Return the policy that puts for each result, at once, what a library left of it."""

    def send(_: Any, upto: int, rows: Rows, __: Any, ___: int) -> list[str]:
        return [left.get(text, text) if kind == "result" else text for i, _, kind, text in rows if i < upto]

    return send


def _clearing(trigger: int, keep: int) -> Policy:
    """Return the policy that clears all but the last results of a conversation that has grown too long."""

    def send(_: Any, upto: int, rows: Rows, __: Any, ___: int) -> list[str]:
        texts = [text for i, _, _, text in rows if i < upto]
        if sum(map(len, texts)) / 4 <= trigger:
            return texts
        results = [at for at, (_, _, kind, _) in enumerate(rows[: len(texts)]) if kind == "result"]
        for at in results[:-keep]:
            texts[at] = _CLEARED
        return texts

    return send


if __name__ == "__main__":
    main()
