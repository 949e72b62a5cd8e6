"""How many small faults the tests find: draws mutants of core modules, and runs tests against each.

Cosmic Ray makes the mutants. Each is written into a copy of the repository, where the tests of its module run
until one fails. A mutant that changes annotations or kinds of parameters alone is not drawn. The same seed
draws the same mutants.

    python benchmarks/mutation.py [--sample 25] [--seed 1] [--jobs 2] [MODULE ...]
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
# A module or a folder of modules of `offload`, and the tests that are to find its faults, the quickest first.
MODULES: dict[str, Sequence[str]] = {
    "engine/items.py": (
        "unit/test_items.py",
        "unit/test_turns.py",
        "unit/test_history.py",
        "unit/test_hooks.py",
        "unit/test_ceiling.py",
        "property/test_restart.py",
    ),
    "engine/binding.py": (
        "unit/test_refusals.py",
        "unit/test_thinking.py",
        "unit/test_bound_thinking.py",
        "unit/test_removed_thinking.py",
        "unit/test_agent_bound.py",
        "unit/test_policy_models.py",
        "property/test_bound_thinking.py",
        "property/test_restart.py",
    ),
    "engine/deciding.py": (
        "unit/test_turns.py",
        "unit/test_bound_thinking.py",
        "unit/test_removed_thinking.py",
        "unit/test_offloader.py",
        "unit/test_ceiling.py",
        "unit/test_hooks.py",
        "unit/test_history.py",
        "unit/test_policy.py",
        "unit/test_policy_cost.py",
        "unit/test_policy_cost_runs.py",
        "unit/test_agent_cost.py",
        "unit/test_agent_too_long.py",
        "faults/test_guards.py",
        "property/test_look_alikes.py",
        "acceptance/test_004_rounds.py",
        "property/test_restart.py",
    ),
    "engine/leaving.py": (
        "unit/test_turns.py",
        "unit/test_bound_thinking.py",
        "unit/test_removed_thinking.py",
        "unit/test_offloader.py",
        "unit/test_ceiling.py",
        "unit/test_hooks.py",
        "unit/test_store_again.py",
        "unit/test_history.py",
        "unit/test_policy_cost.py",
        "faults/test_guards.py",
        "unit/test_recognition.py",
        "acceptance/test_004_rounds.py",
        "property/test_restart.py",
    ),
    "engine/log.py": (
        "unit/test_history.py",
        "unit/test_turns.py",
        "unit/test_documents.py",
        "unit/test_cache_state.py",
        "unit/test_ceiling.py",
        "unit/test_bound_thinking.py",
        "unit/test_removed_thinking.py",
        "property/test_restart.py",
    ),
    "engine/recognition.py": (
        "unit/test_recognition.py",
        "unit/test_fork.py",
        "unit/test_offloader.py",
        "unit/test_bound_thinking.py",
        "acceptance/test_004_rounds.py",
        "property/test_look_alikes.py",
        "faults/test_foreign_refs.py",
        "property/test_restart.py",
    ),
    "engine/writer.py": (
        "unit/test_offloader.py",
        "unit/test_sink.py",
        "unit/test_hooks.py",
        "unit/test_store_again.py",
        "faults/test_guards.py",
        "faults/test_nth_operation.py",
    ),
    "engine/policy/cost.py": (
        "unit/test_policy_cost.py",
        "unit/test_policy_cost_runs.py",
        "unit/test_agent_cost.py",
    ),
    "engine/policy/policy.py": (
        "unit/test_policy.py",
        "unit/test_policy_loading.py",
        "unit/test_policy_cache.py",
        "unit/test_policy_cost.py",
        "unit/test_policy_models.py",
        "unit/test_bound_thinking.py",
        "unit/test_preview.py",
        "property/test_restart.py",
    ),
    "records/codec/_seekable.py": (
        "unit/test_codec.py",
        "unit/test_codec_spooled.py",
        "property/test_codec.py",
    ),
    "records/session/create.py": (
        "unit/test_refs.py",
        "unit/test_offloader.py",
        "unit/test_retention.py",
        "unit/test_sink.py",
        "unit/test_transfer.py",
        "faults/test_nth_operation.py",
    ),
    "records/index/catalog.py": (
        "unit/test_index.py",
        "unit/test_index_updates.py",
        "unit/test_index_large.py",
        "unit/test_titles.py",
        "unit/test_store_again.py",
        "property/test_catalog.py",
    ),
    "messages/anthropic.py": (
        "unit/test_messages.py",
        "unit/test_messages_formats.py",
        "unit/test_media.py",
        "unit/test_documents.py",
        "unit/test_thinking.py",
        "unit/test_programmatic.py",
        "unit/test_gemini_interactions.py",
        "unit/test_context.py",
        "property/test_messages.py",
        "property/test_every_text.py",
    ),
    "agent/compaction/rounds.py": ("unit/test_compaction_rounds.py", "acceptance/test_004_rounds.py"),
    "reading/tables": (
        "unit/test_tables.py",
        "unit/test_tables_in_doubt.py",
        "unit/test_tools_query.py",
        "unit/test_tables_against_other_readers.py",
    ),
}
# A mutant that loops is found too.
_PATIENCE = 5
_OPPOSITES = (("Eq", "NotEq"), ("Is", "IsNot"), ("Lt", "GtE"), ("Gt", "LtE"))
_BOUNDS = (("Lt", "LtE"), ("Gt", "GtE"))
_COMPARISONS = {pair for one, other in (*_OPPOSITES, *_BOUNDS) for pair in ((one, other), (other, one))}
_FAILED = (1, 2)  # a test fails; a module cannot be imported


class Mutant(NamedTuple):
    """A change at one place of one file."""

    path: Path
    operator: str
    place: int

    def code(self) -> str:
        """Return the changed file; that of a lone `*` among parameters is no Python, nor is an empty one."""
        try:
            return str(mutate_code(_source(self.path), get_operator(self.operator)(), self.place))
        except AttributeError:  # of `except module.Error`, which Cosmic Ray cannot change
            return ""

    def change(self) -> str:
        """Return the lines that differ, as in a diff."""
        before, after = _source(self.path).splitlines(), self.code().splitlines()
        lines = [*difflib.unified_diff(before, after, str(self.path), lineterm="", n=0)][2:]
        return "\n".join([f"{self.path} {self.operator}", *lines])


@cache
def _source(path: Path) -> str:
    return (ROOT / path).read_text("utf-8")


@cache
def _meaning(code: str) -> str | None:
    """Return what a module does, without annotations and kinds of parameters; None if it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.arguments):
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults += [default for default in node.kw_defaults if default]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return ast.dump(tree)


_NOTHING = _meaning("")


def _tells(operator: str) -> bool:
    """Return whether a change of a comparison may mean something: its opposite, or its bound.

    Names that are ordered, and `is` for `==`, mostly are the same code. PIT draws these two kinds as well.
    """
    _, _, pair = operator.partition("ReplaceComparisonOperator_")
    return not pair or tuple(pair.split("_")) in _COMPARISONS


def _all_of(path: Path) -> Iterator[Mutant]:
    nodes = [*ast_nodes(get_ast(_source(path)))]
    for name in operator_names():
        # Two operators take arguments, which nobody chose.
        if name.startswith("core/Variable") or not _tells(name):
            continue
        operator = get_operator(name)()
        places = sum(1 for node in nodes for _ in operator.mutation_positions(node))
        yield from (Mutant(path, name, place) for place in range(places))


def drawn(module: str, count: int, seed: int) -> list[Mutant]:
    """Return mutants of a module: of each kind of change as many as there are places for it, by chance."""
    place = ROOT / "offload" / module
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    found = [mutant for file in files for mutant in _all_of(file.relative_to(ROOT))]
    random.Random(f"{seed} {module}").shuffle(found)  # noqa: S311 # reproducible
    changed = (m for m in found if _meaning(m.code()) not in (None, _NOTHING, _meaning(_source(m.path))))
    return [mutant for mutant, _ in zip(changed, range(count), strict=False)]


def copied(folder: Path) -> Path:
    """Return a copy of the repository, without environments and what was built."""
    made = shutil.ignore_patterns(".*", "build", "dist", "__pycache__")
    return Path(shutil.copytree(ROOT, folder, ignore=made))


def exit_code(folder: Path, tests: Sequence[str], patience: float | None = None) -> int | None:
    """Return the exit code of the tests in a copy; None if they did not end."""
    environ = {
        "OFFLOAD_TRANSCRIPTS": str(ROOT.parent / "shared" / "transcripts"),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "backends")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    try:
        done = subprocess.run(
            [*command, *(f"tests/{name}" for name in tests)],
            cwd=folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def outcome(mutant: Mutant, folder: Path, tests: Sequence[str], patience: float) -> str:
    """Return what became of a mutant: killed, endless or survived."""
    path = folder / mutant.path
    path.write_text(mutant.code(), "utf-8")
    try:
        code = exit_code(folder, tests, patience)
    finally:
        path.write_text(_source(mutant.path), "utf-8")
    if code is None:
        return "endless"
    if code not in (0, *_FAILED):
        raise SystemExit(f"{mutant.change()}\npytest ended with {code}, which is no verdict of a test")
    return "killed" if code else "survived"


def judged(module: str, mutants: Sequence[Mutant], folders: Sequence[Path]) -> list[str]:
    """Return what became of each mutant."""
    tests = MODULES[module]
    begun = time.monotonic()
    if code := exit_code(folders[0], tests):
        raise SystemExit(f"the tests of {module} fail without a mutant (pytest ended with {code})")
    patience = 30 + _PATIENCE * len(folders) * (time.monotonic() - begun)
    free: SimpleQueue[Path] = SimpleQueue()
    for folder in folders:
        free.put(folder)

    def judge(mutant: Mutant) -> str:
        folder = free.get()
        try:
            return outcome(mutant, folder, tests, patience)
        finally:
            free.put(folder)

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(judge, mutants))


def main(arguments: Any) -> None:
    """Print a row for each module, and on the other stream the mutants that survived."""
    if unknown := set(arguments.modules) - MODULES.keys():
        raise SystemExit(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    print("| module | mutants | killed | endless | survived | found |\n|---|---|---|---|---|---|", flush=True)
    with TemporaryDirectory() as temporary:
        folders = [copied(Path(temporary, str(n))) for n in range(arguments.jobs)]
        for module in arguments.modules or MODULES:
            mutants = drawn(module, arguments.sample, arguments.seed)
            outcomes = judged(module, mutants, folders)
            count = Counter(outcomes)
            found = 1 - count["survived"] / len(mutants)
            figures = (len(mutants), count["killed"], count["endless"], count["survived"], f"{found:.0%}")
            print(f"| `{module}` | {' | '.join(map(str, figures))} |", flush=True)
            for mutant, became in zip(mutants, outcomes, strict=True):
                if became == "survived":
                    print(f"\n{mutant.change()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--sample", type=int, default=25, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many run at once")
    main(parser.parse_args())
