"""Previews: what of a tool's result the model still sees when it needs it, and the time they take.

A fact is a distinctive name that enters a recorded conversation with a result and that the assistant writes
later. It is named if the preview holds it, in context if half of the words around it are there too. The
measure is a program of its own, `preview_recall.py`, at OFFLOAD_PREVIEW_RECALL or next to the repository in
`shared/measure`; it reads the transcripts of `bench_savings.py`. Each source is told with the mean of all
others: a change that helps one source alone shows there. Without transcripts the time alone is measured.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

from _content import json_line, output
from _measure import Figure, run, size

from offload import estimate_tokens
from offload.engine.preview import preview_of
from offload.engine.preview.preview import head_tail
from offload.reading.tables import schema_line

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_LEAST_CHARS = 5_000
# Characters of the preview → facts named, facts in context.
_RECALL_BUDGETS = {1_000: (0.58, 0.33), 2_000: (0.80, 0.52)}
_MEAN_BUDGET, _MOST_BUDGET = 2.5, 10
_SIZES = (5_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
_ROUNDS = 20
_SHAPE_CHARS = 100_000
_QUERY = '{"path": "lib/report.py"}'
# A line of each shape of text, by its number.
_SHAPES: dict[str, Callable[[int], str]] = {
    "one character a line": lambda n: "x" if n % 2 else "y",
    "a number a line": str,
    "a name a line": lambda n: f"mod{n}.func_{n * 7919 % 10007}",
    "a path a line": lambda n: f"/srv/app/part{n % 7}/file_{n}.py",
    "an error a line": lambda n: f"FAILED tests/test_{n}.py::test_case_{n}",
    "a log": lambda n: f"2026-01-02 10:00:{n % 60:02} INFO step {n} of job-{n % 9} done in {n % 71} ms",
    "code": lambda n: (
        f"def settle_{n}(first, second):\n    total_{n} = first.value + second\n    return total_{n}"
    ),
    "grep": lambda n: f"src/module_{n % 37}/file_{n % 97}.py:{n}:    value_{n} = call_{n % 13}(x)",
    "table": lambda n: f"{n},user{n},user{n}@example.com,{n * 7 % 1000}",
    "JSON lines": lambda n: json.dumps({"id": n, "file": f"src/part_{n}.py", "ok": n % 7 != 0}),
    "prose": lambda n: f"The quick brown fox number {n} jumps over the lazy dog.\n" if n % 5 else "",
}


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    for chars in _SIZES[: -1 if is_quick else None]:
        milliseconds = _milliseconds(output(chars))
        yield Figure(
            f"preview and token estimate of {size(chars)} of output", milliseconds, "ms", at_most=_MOST_BUDGET
        )
    times = {name: _milliseconds(text) for name, text in _texts()}
    yield Figure("preview of 100 KB, mean of the shapes", mean(times.values()), "ms", at_most=_MEAN_BUDGET)
    for name, milliseconds in times.items():
        yield Figure(f"preview of 100 KB, {name}", milliseconds, "ms", at_most=_MOST_BUDGET)
    program = Path(os.environ.get("OFFLOAD_PREVIEW_RECALL", _SHARED / "measure" / "preview_recall.py"))
    transcripts = Path(os.environ.get("OFFLOAD_TRANSCRIPTS", _SHARED / "transcripts"))
    if not program.is_file() or not transcripts.is_dir():
        print(f"recall is not measured: {program} and {transcripts} are not both there")
        return
    measure = load_measure(program)
    for chars, budgets in _RECALL_BUDGETS.items():
        yield from _recall(measure, transcripts, chars, budgets)


def _texts() -> Iterator[tuple[str, str]]:
    yield "output of tools", output(_SHAPE_CHARS)
    yield "one line of JSON", json_line(_SHAPE_CHARS, "needle")
    yield "one line of one character", "x" * _SHAPE_CHARS
    for name, line in _SHAPES.items():
        yield name, "\n".join(map(line, range(_SHAPE_CHARS)))[:_SHAPE_CHARS]


def _milliseconds(text: str) -> float:
    """Return the least CPU time of preview, line for a table and estimate: other processes only add to it."""
    times = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        preview_of(text, 1_000, query=_QUERY)
        schema_line(text)
        estimate_tokens(text)
        times.append(time.process_time() - start)
    return min(times) * 1000


def _recall(
    measure: ModuleType, transcripts: Path, chars: int, budgets: tuple[float, float]
) -> Iterator[Figure]:
    sources = {folder.name: folder for folder in sorted((transcripts / "trajectories").iterdir())}
    rows: dict[str, list[Any]] = {
        name: [row for row in measure.replaced_by_library(folder, _LEAST_CHARS, chars) if row[0] != row[2]]
        for name, folder in sources.items()
    }
    rows = {name: each for name, each in rows.items() if each}
    ours = measure.score(row for each in rows.values() for row in each)
    samples = measure.samples(transcripts, _LEAST_CHARS)
    plain = measure.score((text, facts, head_tail(text, chars).text) for *_, text, facts in samples)
    for what, key, budget in zip(("named", "in context"), ("macro", "context_macro"), budgets, strict=True):
        detail = f"{plain[key]:.2f} by beginning and end alone, {ours['results']} results"
        yield Figure(f"facts {what}, {chars:,} characters", ours[key], "", at_least=budget, detail=detail)
    for name, each in rows.items():
        one = measure.score(each)
        others = measure.score(row for other in rows if other != name for row in rows[other])
        detail = (
            f"in context {one['context_macro']:.2f}, {one['results']} results; "
            f"all others {others['macro']:.2f}, in context {others['context_macro']:.2f}"
        )
        yield Figure(f"  facts named, {chars:,} characters, {name}", one["macro"], "", detail=detail)


def load_measure(program: Path) -> ModuleType:
    """Return the measure of facts, a program of its own, as a module."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    if spec is None or spec.loader is None:
        raise ImportError(f"{program} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    run(__doc__, figures)
