"""`import offload`: its time beyond a bare interpreter, and what it must not load; commands as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from _measure import Figure, compare, duration, repeat, run

from offload import Offloader

_BUDGET_MS, _OPEN_BUDGET_MS = 100, 0.3
_ROUNDS, _QUICK_ROUNDS = 21, 11
# By command, the most milliseconds of CPU time.
_COMMANDS = {"offload --help": 70, "offload ls": 250, "offload exec -- true": None}
_HEAVY = ("fsspec", "s3fs", "aiobotocore", "boto3", "botocore", "rich", "typer")


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    with tempfile.TemporaryDirectory() as compiled:
        # A package is compiled once, when it is installed or first used, wherever that is turned off.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for source in ("import offload", "from offload import Offloader"):
            paired = compare(
                partial(_python_in, environment, source),
                partial(_python_in, environment, "pass"),
                rounds,
                int,
            )
            # The best of many: what else the machine does can only add.
            ours, bare = min(paired.ours), min(paired.raw)
            yield Figure(
                f"{source}, beyond a bare interpreter",
                (ours - bare) * 1000,
                "ms",
                at_most=_BUDGET_MS,
                detail=f"best of {len(paired.ours)}: {duration(ours)} to {duration(bare)}",
            )
        yield from _commands(environment, rounds)
    loaded = set(_python("from offload import Offloader; import sys; print(*sys.modules)").split())
    heavy = [name for name in _HEAVY if name in loaded]
    yield Figure("heavy packages that it loads", len(heavy), "", at_most=0, detail=", ".join(heavy))
    yield Figure("modules that it loads", len(loaded), "", detail="those of the interpreter among them")
    yield _opened(rounds)


def _commands(environment: Mapping[str, str], rounds: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as store:
        Offloader(store, session="s").offload_text("a line of a record\n" * 1000)
        known = {**environment, "OFFLOAD_STORE": store}
        for command, budget in _COMMANDS.items():
            arguments = [sys.executable, "-m", *command.split()]
            least = min(_cpu(arguments, known) for _ in range(rounds))
            yield Figure(
                f"{command}, CPU time", least * 1000, "ms", at_most=budget, detail=f"best of {rounds}"
            )


def _cpu(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the CPU seconds of a process."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _opened(rounds: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        milliseconds = repeat(partial(Offloader, folder, session="s"), 10 * rounds) * 1000
    return Figure("Offloader(path), after the first", milliseconds, "ms", at_most=_OPEN_BUDGET_MS)


def _python_in(environment: Mapping[str, str], source: str, _: int) -> str:
    return _python(source, environment)


def _python(source: str, environment: Mapping[str, str] | None = None) -> str:
    command = [sys.executable, "-c", source]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


if __name__ == "__main__":
    run(__doc__, figures)
