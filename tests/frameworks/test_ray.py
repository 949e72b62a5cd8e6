"""Workers of a real Ray cluster on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offload import Offloader
from offload.maintenance.jobs import verify
from offload.maintenance.jobs.executors import RayExecutor

ray = pytest.importorskip("ray", reason="needs offload[ray]")


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield RayExecutor(ray)
    ray.shutdown()


def test_the_workers_of_a_cluster_find_the_damage_that_one_process_finds(executor, tmp_path):
    off = Offloader(tmp_path, session="a")
    for number in range(130):
        off.offload_text(f"{number} line of output\n" * 600, tool_name="Bash", tool_use_id=f"t{number}")
    damaged = min(tmp_path.glob("r/a/*.zst"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    alone = verify(off.store)

    found = verify(off.store, executor=executor)

    assert (found.sessions, found.checked, found.failures) == (1, 130, [])
    assert [(n, d.info, str(d.error)) for n, d in found.damaged] == [
        (n, d.info, str(d.error)) for n, d in alone.damaged
    ]
