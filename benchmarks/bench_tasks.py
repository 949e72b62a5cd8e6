"""The same scripted agent at the same tasks, with each library: solved, wrong answers, requests, cost.

No model takes part. The agent is a program that knows what stands in its messages, so the figures show
whether the facts that a task needs can be reached, not whether a model would think of it. Each library runs
in its own environment, at its defaults. The full run also draws `docs/assets/tasks.svg`, and `edits.svg` of
the families in which the agent edits files by exact quotes.
`[--quick] [--edits] [--most TOKENS] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _shares import svg
from peers._environments import CANDIDATES, ENVIRONMENTS, Candidate, make_environments
from peers._families import EDITING, FAMILIES, Make, write

_HERE = Path(__file__).resolve().parent
_SIZES = (8_000, 32_000, 128_000, 512_000, 1_000_000)
_WINDOWS = (32_000, 128_000)
# The table is of seeds that nobody looked at while the agent was written.
_SEEDS, _QUICK_SEEDS = (811, 812), (1,)
_SECONDS = 900
# No time is measured, so the stores need no disk.
_MEMORY = "/dev/shm"  # noqa: S108 # folders in it have names of their own
_IN_MEMORY = _MEMORY if os.access(_MEMORY, os.W_OK) else None

_OURS = "ours_in_a_loop"
_LIBRARIES = (
    "everything in the window",
    "LangChain clearing",
    "strands",
    "deepagents",
    "pydantic-ai-harness",
    "agno",
    "ctxtual",
    "offload",
)
_PICTURES = Path(__file__).parents[1] / "docs" / "assets"
_GREP = ("find", "find_all")
_WITHOUT = {
    "grep": _GREP,
    "query": ("query",),
    "diff": ("diff",),
    "grep, query, diff": (*_GREP, "query", "diff"),
}
# They need nothing that is not installed.
_QUICK_ARMS = ("everything in the window", "head and tail", "offload")

Row = dict[str, Any]
Cell = Callable[[list[Row]], str]


@dataclass(frozen=True, slots=True)
class Arm:
    """One column: a candidate, the ways to read back that the agent is not offered, and a variant of ours."""

    name: str
    program: str
    candidate: Candidate
    without: tuple[str, ...] = ()
    variant: str = ""


def main() -> None:
    """Run all arms and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, one window, another seed")
    parser.add_argument("--edits", action="store_true", help="only the families of edits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every task as JSON")
    parser.add_argument("--most", type=int, default=_SIZES[-1], metavar="TOKENS", help="no larger tasks")
    options = parser.parse_args()
    if not options.quick:
        make_environments()
    kinds = [EDITING] if options.edits else [FAMILIES, EDITING]
    rows = _rows(kinds, options.most, is_quick=options.quick)
    is_whole = not options.quick and options.most >= _SIZES[-1]
    if not options.edits:
        _report(rows, FAMILIES, "tasks", "Tasks solved (wrong answers)", _cell, is_drawn=is_whole)
    title = "Edits: tasks solved (failed edits), extra requests of a solved task"
    _report(rows, EDITING, "edits", title, _edits_cell, is_drawn=is_whole)
    for window, part in _grouped([row for row in rows if row["family"] in EDITING], "window"):
        print(f"\nExtra requests and cost / those of offload, where both solve; window {window:,} tokens\n")
        _print_pairs(part)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _rows(kinds: list[dict[str, Make]], most: int, *, is_quick: bool) -> list[Row]:
    """Return what each arm did at the tasks of all these families, of at most so many tokens."""
    windows, seeds = (_WINDOWS[:1], _QUICK_SEEDS) if is_quick else (_WINDOWS, _SEEDS)
    sizes = [size for size in _SIZES[: 2 if is_quick else None] if size <= most]
    with TemporaryDirectory(dir=_IN_MEMORY) as folder:
        for family, tokens, seed in product((name for kind in kinds for name in kind), sizes, seeds):
            write(Path(folder), family, tokens, seed)
        tasks = [
            {"tokens": tokens, "window": window, "seeds": seeds, "cases": folder, "families": list(kind)}
            for kind, window, tokens in product(kinds, windows, sizes)
        ]

        def done(arm: Arm) -> list[Row]:
            own = [task for task in tasks if _has(arm, task)]
            return solve(arm, own, is_quick=is_quick) if own else []

        with ThreadPoolExecutor(2) as pool:
            arms = arms_of(_QUICK_ARMS) if is_quick else list(_arms())
            return [row for rows in pool.map(done, arms) for row in rows]


def _arms() -> Iterator[Arm]:
    by_name = {candidate.name: candidate for candidate in CANDIDATES}
    bare, ours = by_name["json.dump by hand"], by_name["offload"]
    yield Arm("everything in the window", "plain", bare)
    yield Arm("head and tail", "plain_cut", bare)
    for name in ("LangChain clearing", "strands", "deepagents", "pydantic-ai-harness", "agno", "ctxtual"):
        yield Arm(name, by_name[name].program, by_name[name])
    yield Arm("offload", _OURS, ours, variant="default")
    for variant in ("economy", "verbatim", "context_refs", "context_fs"):
        yield Arm(f"offload, {variant}", _OURS, ours, variant=variant)
    for variant in ("previews", "titles", "ledger"):
        yield Arm(f"offload without {variant}", _OURS, ours, variant=variant)
    for name, verbs in _WITHOUT.items():
        yield Arm(f"offload without {name}", _OURS, ours, verbs, variant="default")


def _has(arm: Arm, task: Row) -> bool:
    """Return whether an arm does a task: parts of ours are left out in the smaller window, without edits."""
    is_basic = task["window"] == _WINDOWS[0] and task["families"] == list(FAMILIES)
    return is_basic or " without " not in arm.name


def arms_of(names: Sequence[str]) -> list[Arm]:
    """Return the arms of these names."""
    return [arm for arm in _arms() if arm.name in names]


def solve(arm: Arm, tasks: list[Row], *, is_quick: bool = False) -> list[Row]:
    """Return a row for each case of the tasks, as a process of the arm's environment did them.

    Args:
        arm: the arm.
        tasks: for each, `tokens`, `window`, `seeds`, `families`, and the folder `cases` of their cases.
        is_quick: take this interpreter and its packages.
    """
    with TemporaryDirectory(dir=_IN_MEMORY) as folder:
        question, answer = Path(folder, "tasks.json"), Path(folder, "answers.json")
        asked = [
            {**task, "task": "solving", "store": f"{folder}/{n}", "without": arm.without}
            for n, task in enumerate(tasks)
        ]
        question.write_text(json.dumps(asked), encoding="utf-8")
        python = sys.executable if is_quick else str(arm.candidate.python)
        command = [
            python,
            "-m",
            f"peers.{arm.program}",
            str(question),
            str(answer),
            arm.variant,
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(_HERE),
            "PYTHONPYCACHEPREFIX": str(ENVIRONMENTS / "compiled"),
        }
        subprocess.run(command, check=True, env=environment, timeout=_SECONDS, stdout=subprocess.DEVNULL)
        answers = json.loads(answer.read_text("utf-8"))
    print(f"{arm.name}: done", flush=True)
    return [
        {"arm": arm.name, "tokens_of_task": task["tokens"], "window": task["window"], **row}
        for task, given in zip(tasks, answers, strict=True)
        for row in given["rows"]
    ]


def _report(
    rows: list[Row], families: Iterable[str], name: str, title: str, cell: Cell, *, is_drawn: bool
) -> None:
    """Print the tables of some families, and draw what each library solved in the smaller window."""
    rows = [row for row in rows if row["family"] in families]
    _print_tables(rows, title, cell)
    if is_drawn:
        _draw(_PICTURES / f"{name}.svg", title.partition(" (")[0], rows)


def _print_tables(rows: list[Row], title: str, cell: Cell) -> None:
    for window, part in _grouped(rows, "window"):
        print(f"\n{title}, by tokens of tool output; window {window:,} tokens\n")
        print_table(part, cell)
    print(f"\n{title}, by family, all sizes and windows\n")
    arms = [arm for arm in dict.fromkeys(row["arm"] for row in rows) if arm in _LIBRARIES]
    rows = [row for row in rows if row["arm"] in arms]
    print("| family | " + " | ".join(arms) + " |")
    print("|---" * (len(arms) + 1) + "|")
    for family, part in _grouped(rows, "family"):
        cells = [cell([row for row in part if row["arm"] == arm]) for arm in arms]
        print(f"| {family} | {' | '.join(cells)} |")


def _cell(rows: list[Row]) -> str:
    states = Counter(row["state"] for row in rows)
    wrong = f" ({states['wrong']})" if states["wrong"] else ""
    return f"{states['solved']}/{states.total()}{wrong}"


def _edits_cell(rows: list[Row]) -> str:
    solved = sum(row["state"] == "solved" for row in rows)
    failed = sum(row["failed"] for row in rows)
    told = f" ({failed})" if failed else ""
    return f"{solved}/{len(rows)}{told}, {_mean(rows, 'extra', 1)}"


def print_table(rows: list[Row], cell: Cell = _cell) -> None:
    """Print a line for each arm: a cell for the tasks of each size, and what those that were solved cost."""
    sizes = sorted({row["tokens_of_task"] for row in rows})
    print(
        "| library | " + " | ".join(f"{size:,}" for size in sizes) + " | requests | cost of a solved task |"
    )
    print("|---" * (len(sizes) + 3) + "|")
    for arm, done in _grouped(rows, "arm"):
        cells = [cell([row for row in done if row["tokens_of_task"] == size]) for size in sizes]
        print(f"| {arm} | {' | '.join(cells)} | {_mean(done, 'requests', 1)} | {_mean(done, 'cost', 0)} |")


def _print_pairs(rows: list[Row]) -> None:
    """Print a line for each other library: its extra requests and cost, and ours for the same tasks."""
    sizes = sorted({row["tokens_of_task"] for row in rows})
    solved = {(row["arm"], *_task(row)): row for row in rows if row["state"] == "solved"}
    print("| library | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for arm in (name for name in dict.fromkeys(row["arm"] for row in rows) if name != "offload"):
        cells = []
        for size in sizes:
            pairs = [
                (row, solved["offload", *task])
                for (name, *task), row in solved.items()
                if name == arm and row["tokens_of_task"] == size and ("offload", *task) in solved
            ]
            theirs, ours = zip(*pairs, strict=True) if pairs else ([], [])
            figures = (
                f"{_mean(theirs, key, n)} / {_mean(ours, key, n)}" for key, n in (("extra", 1), ("cost", 0))
            )
            cells.append(", ".join(figures) if pairs else "-")
        print(f"| {arm} | {' | '.join(cells)} |")


def _task(row: Row) -> tuple[Any, ...]:
    return row["family"], row["tokens_of_task"], row["seed"]


def _draw(picture: Path, title: str, rows: list[Row]) -> None:
    shares = {
        arm: [
            sum(row["state"] == "solved" for row in part) / len(part)
            for _, part in _grouped(done, "tokens_of_task")
        ]
        for arm, done in _grouped([row for row in rows if row["window"] == _WINDOWS[0]], "arm")
        if arm in _LIBRARIES
    }
    title = f"{title} by tokens of tool output, window of {_WINDOWS[0]:,} tokens"
    picture.write_text(svg(title, "offload", _SIZES, shares), encoding="utf-8")


def _grouped(rows: list[Row], key: str) -> Iterator[tuple[Any, list[Row]]]:
    order = list(dict.fromkeys(row[key] for row in rows))
    ordered = sorted(rows, key=lambda row: order.index(row[key]))
    return ((value, list(part)) for value, part in groupby(ordered, lambda row: row[key]))


def _mean(rows: Sequence[Row], name: str, digits: int) -> str:
    solved = [row[name] for row in rows if row["state"] == "solved"]
    return f"{sum(solved) / len(solved):,.{digits}f}" if solved else "-"


if __name__ == "__main__":
    main()
