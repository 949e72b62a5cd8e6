"""The same scripted agent at the same tasks, with each library: solved, wrong answers, requests, cost.

No model takes part. The agent is a program that knows what stands in its messages, so the figures show
whether the facts that a task needs can be reached, not whether a model would think of it. Each library runs
in its own environment, at its defaults. `[--quick] [--most TOKENS] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from peers._environments import CANDIDATES, ENVIRONMENTS, Candidate, make_environments
from peers._families import FAMILIES

_HERE = Path(__file__).resolve().parent
_SIZES = (8_000, 32_000, 128_000, 512_000, 1_000_000)
_WINDOWS = (32_000, 128_000)
# The table is of seeds that nobody looked at while the agent was written.
_SEEDS, _QUICK_SEEDS = (701, 702), (1,)
_SECONDS = 900

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """One column: a candidate, and the ways to read back that the agent is not offered."""

    name: str
    program: str
    candidate: Candidate
    without: tuple[str, ...] = ()


def main() -> None:
    """Run all arms and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, one window, another seed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every task as JSON")
    parser.add_argument("--most", type=int, default=_SIZES[-1], metavar="TOKENS", help="no larger tasks")
    options = parser.parse_args()
    make_environments()
    sizes, windows, seeds = (
        (_SIZES[:2], _WINDOWS[:1], _QUICK_SEEDS) if options.quick else (_SIZES, _WINDOWS, _SEEDS)
    )
    tasks = [
        {"task": "solving", "tokens": tokens, "window": window, "seeds": seeds, "families": list(FAMILIES)}
        for window in windows
        for tokens in sizes
        if tokens <= options.most
    ]
    with ThreadPoolExecutor(2) as pool:
        rows = [row for found in pool.map(lambda arm: _solve(arm, tasks), _arms()) for row in found]
    _print_tables(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _arms() -> Iterator[Arm]:
    by_name = {candidate.name: candidate for candidate in CANDIDATES}
    bare, ours = by_name["json.dump by hand"], by_name["offload"]
    yield Arm("everything in the window", "plain", bare)
    yield Arm("head and tail", "plain_cut", bare)
    for name in ("LangChain clearing", "strands", "deepagents", "pydantic-ai-harness", "agno", "ctxtual"):
        yield Arm(name, by_name[name].program, by_name[name])
    yield Arm("offload", ours.program, ours)
    for verbs in (("query",), ("find",), ("diff",), ("query", "find", "diff")):
        yield Arm(f"offload without {', '.join(verbs)}", ours.program, ours, verbs)


def _solve(arm: Arm, tasks: list[Row]) -> list[Row]:
    """Return a row for each task that a process of the arm's environment did."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "tasks.json"), Path(folder, "answers.json")
        asked = [{**task, "store": f"{folder}/{n}", "without": arm.without} for n, task in enumerate(tasks)]
        question.write_text(json.dumps(asked), encoding="utf-8")
        command = [str(arm.candidate.python), "-m", f"peers.{arm.program}", str(question), str(answer)]
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


def _print_tables(rows: list[Row]) -> None:
    for window, part in _grouped(rows, "window"):
        sizes = sorted({row["tokens_of_task"] for row in part})
        print(f"\nTasks solved (wrong answers), by tokens of tool output; window {window:,} tokens\n")
        print(
            "| library | "
            + " | ".join(f"{size:,}" for size in sizes)
            + " | requests | cost of a solved task |"
        )
        print("|---" * (len(sizes) + 3) + "|")
        for arm, done in _grouped(part, "arm"):
            cells = [_cell(row for row in done if row["tokens_of_task"] == size) for size in sizes]
            print(
                f"| {arm} | {' | '.join(cells)} | {_mean(done, 'requests', 1)} | {_mean(done, 'cost', 0)} |"
            )
    print("\nTasks solved (wrong answers) by family, all sizes and windows\n")
    arms = list(dict.fromkeys(row["arm"] for row in rows if " without " not in row["arm"]))
    print("| family | " + " | ".join(arms) + " |")
    print("|---" * (len(arms) + 1) + "|")
    for family, part in _grouped(rows, "family"):
        cells = [_cell(row for row in part if row["arm"] == arm) for arm in arms]
        print(f"| {family} | {' | '.join(cells)} |")


def _grouped(rows: list[Row], key: str) -> Iterator[tuple[Any, list[Row]]]:
    order = list(dict.fromkeys(row[key] for row in rows))
    ordered = sorted(rows, key=lambda row: order.index(row[key]))
    return ((value, list(part)) for value, part in groupby(ordered, lambda row: row[key]))


def _cell(rows: Iterable[Row]) -> str:
    states = Counter(row["state"] for row in rows)
    wrong = f" ({states['wrong']})" if states["wrong"] else ""
    return f"{states['solved']}/{states.total()}{wrong}"


def _mean(rows: list[Row], name: str, digits: int) -> str:
    solved = [row[name] for row in rows if row["state"] == "solved"]
    return f"{sum(solved) / len(solved):,.{digits}f}" if solved else "-"


if __name__ == "__main__":
    main()
