"""Previews: what of a tool's result the model still sees when it needs it, and the time they take.

A fact is a distinctive name that enters a recorded conversation with a result and that the assistant writes
later. It is named if the preview holds it, in context if half of the words around it are there too. The
measure is a program of its own, `preview_recall.py`, at OFFLOAD_PREVIEW_RECALL or next to the repository in
`shared/measure`; it reads the transcripts of `bench_savings.py`. Without them the time alone is measured.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

from _content import output
from _measure import Figure, repeat, run, size

from offload.preview import head_tail, preview_of

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_LEAST_CHARS = 5_000
# Characters of the preview → facts named, facts in context.
_RECALL_BUDGETS = {1_000: (0.55, 0.30), 2_000: (0.80, 0.50)}
_MS_BUDGET = 10
_SIZES = (5_000, 100_000, 10_000_000, 100_000_000)
_ROUNDS = 20


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    for chars in _SIZES[: -1 if is_quick else None]:
        preview = partial(preview_of, output(chars), 1_000, query='{"path": "lib/report.py"}')
        milliseconds = repeat(preview, _ROUNDS) * 1000
        yield Figure(f"preview of {size(chars)}", milliseconds, "ms", at_most=_MS_BUDGET)
    program = Path(os.environ.get("OFFLOAD_PREVIEW_RECALL", _SHARED / "measure" / "preview_recall.py"))
    transcripts = Path(os.environ.get("OFFLOAD_TRANSCRIPTS", _SHARED / "transcripts"))
    if not program.is_file() or not transcripts.is_dir():
        print(f"recall is not measured: {program} and {transcripts} are not both there")
        return
    measure = _load(program)
    for chars, budgets in _RECALL_BUDGETS.items():
        yield from _recall(measure, transcripts, chars, budgets)


def _recall(
    measure: ModuleType, transcripts: Path, chars: int, budgets: tuple[float, float]
) -> Iterator[Figure]:
    ours = measure.score(measure.replaced_by_library(transcripts, _LEAST_CHARS, chars))
    samples = measure.samples(transcripts, _LEAST_CHARS)
    plain = measure.score((text, facts, head_tail(text, chars).text) for *_, text, facts in samples)
    for name, key, budget in zip(("named", "in context"), ("macro", "context_macro"), budgets, strict=True):
        yield Figure(
            f"facts {name}, {chars:,} characters",
            ours[key],
            "",
            at_least=budget,
            detail=f"{plain[key]:.2f} by beginning and end alone, {ours['results']} results",
        )


def _load(program: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(program.stem, program)
    if spec is None or spec.loader is None:
        raise ImportError(f"{program} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    run(__doc__, figures)
