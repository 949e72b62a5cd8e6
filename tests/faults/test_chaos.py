"""The chaos program, on a folder and on S3 servers, and its negative control."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import prepared  # noqa: F401 # it loads the library into the process whose forks act
import pytest
from faults.chaos import losses, run
from servers import new_bucket

if TYPE_CHECKING:
    from conftest import Bucket
    from servers import Server


def test_a_short_chaos_in_a_folder_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    counted = run(str(tmp_path), {}, seconds=4, seed=1, kill_every=1.2)

    assert losses(counted) == []
    assert counted["kept"] > 0
    assert counted["kills"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_chaos_in_a_folder_loses_nothing_that_was_promised(tmp_path: Path, seed: int) -> None:
    counted = run(str(tmp_path), {}, seconds=30, seed=seed)

    assert losses(counted) == []
    assert counted["kept"] > 0
    assert counted["collected"] > 0


@pytest.mark.slow
def test_chaos_on_s3_loses_nothing_that_was_promised(s3_bucket: Bucket) -> None:
    counted = run(s3_bucket.url, s3_bucket.storage_options, seconds=40, seed=4)

    assert losses(counted) == []
    assert counted["kept"] > 0
    assert counted["collected"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("server", ["seaweedfs_server", "rclone_server"])
def test_chaos_on_another_s3_server_loses_nothing_that_was_promised(
    request: pytest.FixtureRequest, server: str
) -> None:
    running: Server = request.getfixturevalue(server)
    bucket = new_bucket(running.endpoint)
    counted = run(bucket.url, bucket.storage_options, seconds=40, seed=6)

    assert losses(counted) == []
    assert counted["kept"] > 0
    assert counted["kills"] > 0


@pytest.mark.slow
def test_chaos_finds_what_a_careless_writer_loses(tmp_path: Path) -> None:
    counted = run(str(tmp_path), {}, seconds=30, seed=5, is_careless=True)

    assert losses(counted) != []
