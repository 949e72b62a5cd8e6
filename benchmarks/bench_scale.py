"""Work on a whole store by many workers: `verify` of a store that is 20 ms away, and of a local one.

Each read of the distant store waits for 20 ms in its own thread, as for a bucket; threads are compared with
one thread. The local store takes time of the processor, so processes are compared with one process.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from _measure import Figure, duration, require, run, seconds

from offload import Offloader
from offload.maintenance.jobs import verify
from offload.maintenance.jobs.executors import executor_of_workers
from offload.storage.store import OffloadStore
from offload_backends.local import LocalStore

_AWAY_SECONDS = 0.02
_SESSIONS, _RECORDS = 20, 64
_QUICK_SESSIONS = 4
_THREADS, _PROCESSES = 16, 2
_ROUNDS = 5
_LARGE_CHARS = 4_000_000


class DistantStore(LocalStore):
    """A store whose reads and listings wait as for a server."""

    is_shared = True

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Wait, then read."""
        time.sleep(_AWAY_SECONDS)
        return super().get(key, start=start, end=end)


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    sessions = _QUICK_SESSIONS if is_quick else _SESSIONS
    with tempfile.TemporaryDirectory() as folder:
        yield _by_threads(Path(folder, "many"), sessions)
        yield _by_processes(Path(folder, "large"), sessions)


def _by_threads(folder: Path, sessions: int) -> Figure:
    _fill(folder, sessions, _RECORDS, 9_000)
    store, count = DistantStore(str(folder)), sessions * _RECORDS
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(_THREADS) as many:
        alone = seconds(partial(_check, store, count, one))
        shared = seconds(partial(_check, store, count, many))
    detail = f"{count:,} records: {duration(alone)} and {duration(shared)}"
    name = f"verify of a store 20 ms away by {_THREADS} threads / by one, records a second"
    return Figure(name, alone / shared, at_least=10.0, detail=detail)


def _by_processes(folder: Path, sessions: int) -> Figure:
    # Many slices of work, so that no worker waits long for the last one of another.
    _fill(folder, 4 * sessions, 2, _LARGE_CHARS)
    store, count = Offloader(folder).store, sessions * 8
    with executor_of_workers([store], _PROCESSES) as pool:
        # Their start is not the work.
        require(sum(pool.map(abs, range(8))) > 0, "the processes do not work")
        works = [partial(_check, store, count, executor) for executor in (None, pool)]
        # Other work on the machine takes time from either: the best round has the least of it.
        rounds = [[seconds(work) for work in works] for _ in range(_ROUNDS)]
    alone, shared = map(min, zip(*rounds, strict=True))
    detail = f"{count:,} records of 4 MB, best of {_ROUNDS}: {duration(alone)} and {duration(shared)}"
    name = f"verify of a local store by {_PROCESSES} processes / by one, records a second"
    return Figure(name, alone / shared, at_least=1.7, detail=detail)


def _fill(folder: Path, sessions: int, records: int, chars: int) -> None:
    drawn = random.Random(7)  # noqa: S311 # reproducible
    words = [f"{drawn.getrandbits(40):x}" for _ in range(5000)]
    options = {"durability": "none"}
    for session in range(sessions):
        off = Offloader(str(folder), session=f"s{session}", storage_options=options)
        for number in range(records):
            text = f"{session} {number}\n" + " ".join(drawn.choices(words, k=chars // 11))
            off.offload_text(text, tool_name="Bash", tool_use_id=f"t{number}")


def _check(store: OffloadStore, count: int, executor: Executor | None) -> None:
    report = verify(store, executor=executor)
    require((report.checked, report.damaged) == (count, []), "not all records were read")


if __name__ == "__main__":
    run(__doc__, figures)
