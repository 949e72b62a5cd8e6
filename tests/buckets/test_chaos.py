"""The chaos program, which kills its actors with SIGKILL, on the servers of both clouds."""

from __future__ import annotations

import pytest
from cloud_servers import Container
from faults.chaos import losses, run

pytest.importorskip("gcp_storage_emulator", reason="make test-clouds runs it")


@pytest.mark.slow
def test_chaos_loses_nothing_that_was_promised(container: Container) -> None:
    # The clouds' packages take seconds to load.
    counted = run(container.url, container.storage_options, seconds=60, seed=7, kill_every=3)

    assert losses(counted) == []
    assert counted["kept"] > 0
    assert counted["kills"] > 0
