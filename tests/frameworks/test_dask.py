"""Workers of a real Dask cluster, by the executor of its client and by the command line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker import size_of

from offload import Offloader, OffloadError, StoreUnavailableError
from offload.maintenance.jobs import verify
from offload.maintenance.jobs.each import run_each
from offload.maintenance.jobs.executors import executor_on

distributed = pytest.importorskip("distributed", reason="needs offload[dask]")
pytestmark = pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=None, memory_limit=0
    ) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        off = Offloader(tmp_path, session=name)
        for number in range(80):
            off.offload_text(f"{number} line of output\n" * 600, tool_name="Bash", tool_use_id=f"t{number}")
    damaged = min(tmp_path.glob("r/b/*.zst"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    return tmp_path


def test_the_workers_of_a_scheduler_find_the_damage_that_one_process_finds(cluster, folder):
    store = Offloader(folder).store
    alone = verify(store)

    with executor_on(cluster.scheduler_address) as executor:
        found = verify(store, executor=executor)

    assert (found.sessions, found.checked, found.failures) == (2, 160, [])
    assert [(n, d.info, str(d.error)) for n, d in found.damaged] == [
        (n, d.info, str(d.error)) for n, d in alone.damaged
    ]


def test_a_killed_worker_costs_nothing_that_another_can_do_again(cluster, folder):
    store = Offloader(folder).store
    keys = [stored.key for stored in store.keys("r/")]

    with executor_on(cluster.scheduler_address) as executor:
        results = run_each(size_of, keys, [store], executor=executor)
        first = next(results)
        os.kill(min(worker.pid for worker in cluster.workers.values()), signal.SIGKILL)
        sizes = [first, *results]

    assert not [each for _, each in sizes if isinstance(each, OffloadError)]
    assert sizes == [(key, (folder / key).stat().st_size) for key in keys]


def test_a_scheduler_that_is_not_there_is_named():
    lost = pytest.raises(StoreUnavailableError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9")
    with lost, executor_on("tcp://127.0.0.1:9"):
        pass
