"""Tasks of LOCA-bench with the scripted agent of `bench_tasks.py`: list and filter, join, aggregate.

The generators are those of hkust-nlp/LOCA-bench (MIT), which is cloned into `.venv-peers`; their data is what
the tools of the agent return, and the rules are theirs. The agent and its limits are those of
`bench_tasks.py`. `PEERS_MIRROR` names a folder of clones to use instead of the network. `[--json FILE]`
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from bench_tasks import arms_of, print_table, solve
from peers._environments import ENVIRONMENTS, make_environments
from peers._families import CHARS_PER_TOKEN, write_case

_REPOSITORY, _COMMIT = "hkust-nlp/LOCA-bench", "8cd474d"
_SIZES, _SEEDS, _WINDOW = (8_000, 32_000, 128_000, 256_000), (821, 822, 823, 824, 825), 32_000
_ARMS = ("everything in the window", "strands", "deepagents", "pydantic-ai-harness", "agno", "offload")
_PAGE = 100
_EXAMS, _SCENARIOS = 7, 4

Case = dict[str, Any]
Generate = Callable[..., None]


def main() -> None:
    """Run the tasks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every task as JSON")
    options = parser.parse_args()
    make_environments()
    generate = _generator()
    with TemporaryDirectory() as folder:
        for (name, make), tokens, seed in product(_SHAPES.items(), _SIZES, _SEEDS):
            with TemporaryDirectory() as made:
                case = make(generate, Path(made), int(tokens * CHARS_PER_TOKEN), seed)
            write_case(Path(folder), name, tokens, seed, case)
        task = {"window": _WINDOW, "seeds": _SEEDS, "cases": folder, "families": list(_SHAPES)}
        tasks = [{**task, "tokens": tokens} for tokens in _SIZES]
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda arm: solve(arm, tasks), arms_of(_ARMS))
            rows = [row for part in found for row in part]
    print(f"\nTasks solved (wrong answers), by tokens of tool output; window {_WINDOW:,} tokens\n")
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _generator() -> Generate:
    """Return a function that runs a generator of the repository, with the packages that it imports."""
    clone, environment = ENVIRONMENTS / "LOCA-bench", ENVIRONMENTS / "loca"
    if not (clone / "LICENSE").exists():
        mirror = os.environ.get("PEERS_MIRROR")
        source = f"https://github.com/{_REPOSITORY}"
        if mirror is not None:
            source = str(Path(mirror, _REPOSITORY.replace("/", "+"), "repo"))
        _run("git", "clone", "--quiet", "--no-checkout", source, clone)
        _run("git", "-C", clone, "checkout", "--quiet", _COMMIT, "--", "LICENSE", "gem/envs")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    if not environment.exists():
        _run(uv, "venv", "--quiet", "--python", sys.executable, environment)
        _run(uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", "numpy", "pandas")

    def generate(program: str, folder: Path, **options: int) -> None:
        named = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        script = clone / "gem" / "envs" / program
        _run(environment / "bin" / "python", script, f"--output-dir={folder}", *named)

    return generate


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _filtered(generate: Generate, folder: Path, chars: int, seed: int) -> Case:
    """The stock of the products that sell little, over pages of a shop."""
    count = max(10, chars // 450)
    low = count // 4
    program = "filter_low_selling_products_s2l/preprocess/generate_products_data.py"
    generate(
        program, folder, num_low_selling=low, num_normal_selling=count - low, num_subscribers=3, seed=seed
    )
    products = json.loads((folder / "preprocess" / "generated_products.json").read_text("utf-8"))
    pages = -(-len(products) // _PAGE)
    step = -(-len(products) // pages)
    outputs = [
        "[" + ",\n".join(map(json.dumps, products[at : at + step])) + "]"
        for at in range(0, len(products), step)
    ]
    rows = {
        "pattern": r'"name": "([^"]+)"(?=.*"product_type", "value": "(\w+)").*?"stock_quantity": (\d+)',
        "where": "low_selling",
        "sql": "select sum(stock_quantity) from t where meta_data like '%\"low_selling\"%'",
        "rows": len(products),
    }
    stocks = (
        item["stock_quantity"]
        for item in products
        if any(meta["value"] == "low_selling" for meta in item["meta_data"])
    )
    return _summed(outputs, rows, sum(stocks))


def _aggregated(generate: Generate, folder: Path, chars: int, seed: int) -> Case:
    """The clicks of group A over all scenarios of an A/B test."""
    days = max(1, chars // (_SCENARIOS * 24 * 33))
    program = "ab_testing_s2l/generate_ab_data.py"
    generate(program, folder, num_scenarios=_SCENARIOS, num_days=days, seed=seed)
    outputs = [path.read_text("utf-8") for path in sorted(folder.glob("ab_*.csv"))]
    window = r"\d+/\d+ \d\d"
    rows = {
        "pattern": rf"(?=({window}:00-\d\d:59,\d+,\d+,\d+,\d+)){window}(:00-)\d\d:59,(\d+),",
        "where": ":00-",
        "sql": "select sum(A_clicks) from t",
        "rows": len(outputs) * days * 24,
    }
    clicks = sum(int(row["A_clicks"]) for text in outputs for row in csv.DictReader(text.splitlines()))
    return _summed(outputs, rows, clicks)


def _joined(generate: Generate, folder: Path, chars: int, seed: int) -> Case:
    """The score in an earlier exam of a student whose name is in the latest results."""
    students = max(5, chars // ((_EXAMS + 1) * 26))
    program = "academic_warning_s2l/generate_academic_data.py"
    generate(program, folder / "files", num_students=students, num_exams=_EXAMS, seed=seed)
    latest = folder / "initial_workspace" / "latest_quiz_scores.csv"
    paths = [latest, *sorted((folder / "files").glob("scores_*.csv"))]
    outputs = [path.read_text("utf-8") for path in paths]
    random = Random(seed)  # noqa: S311 # no secret
    exam = random.randint(1, _EXAMS)
    student = random.choice(list(csv.DictReader(outputs[exam].splitlines())))
    name = student["name"]
    ops = [
        *({"op": "call", "argument": path.name} for path in paths),
        {"op": "one", "of": 0, "key": f",{name},", "pattern": rf"(S\d+),{name},"},
        {"op": "one", "of": exam, "key": "{0},", "pattern": r"\b{0},[^,]+,[^,]+,([\d.]+)"},
    ]
    return {"ops": ops, "outputs": outputs, "answer": student["score"]}


def _summed(outputs: list[str], rows: Case, answer: int) -> Case:
    calls = [{"op": "call", "argument": f"page {number}"} for number in range(len(outputs))]
    ops = [*calls, {"op": "rows", "of": list(range(len(outputs))), **rows}]
    return {"ops": ops, "outputs": outputs, "answer": str(answer)}


_SHAPES: dict[str, Callable[[Generate, Path, int, int], Case]] = {
    "list and filter": _filtered,
    "join": _joined,
    "aggregate": _aggregated,
}

if __name__ == "__main__":
    main()
