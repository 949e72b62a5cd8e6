"""The power fails after each system call of the writer: what the disk holds then is all there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.conversation import (
    MESSAGES,
    SESSION,
    TEXTS,
    check_survivors,
    contents_at_rest,
    placeholders,
    replaced_in,
)
from faults.media import Disk
from faults.tracing import NAMING_CALL, NAMING_CALL_BY_PATH, tracer

from offload import CorruptError, NotFoundError, Offloader
from offload_backends.local import LocalStore

CHANGES = ("mkdirat", "mkdir", "write", "fsync", "linkat", "link", "renameat2", "unlinkat", "unlink")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path).running() as disk:
        yield disk


def cuts_at_any_change(disk: Disk, road: str) -> Iterator[tuple[Path, dict[int, Any]]]:
    """Cut the power after each change of a writer; yield its root and the messages it acknowledged."""
    with tracer(road) as traced:
        points = [p for p in traced.run(disk.path / "whole").points() if p.syscall in CHANGES]
        for point in points:
            root = f"{point.syscall}-{point.nth}"
            disk.settle()
            with traced.running(disk.path / root, point.fault("signal=STOP")) as run:
                assert run.shows("stopped by SIGSTOP"), point
                disk.cut_power()
            with disk.after_the_cut() as path:
                yield path / root, run.acknowledged


@pytest.mark.parametrize(
    "road", ["unnamed", *(pytest.param(road, marks=pytest.mark.slow) for road in ("named", "renamed"))]
)
def test_what_was_acknowledged_survives_a_power_cut_at_any_change(disk: Disk, road: str) -> None:
    roots = 0
    for root, acknowledged in cuts_at_any_change(disk, road):
        roots += 1
        check_survivors(root, acknowledged)

    assert roots > 15


@pytest.mark.slow
@pytest.mark.parametrize("road", NAMING_CALL_BY_PATH)
def test_a_system_that_syncs_no_folder_loses_whole_records_and_keeps_no_half_one(
    disk: Disk, road: str
) -> None:
    roots = 0
    for root, _ in cuts_at_any_change(disk, road):
        roots += 1
        if root.exists():
            check_survivors(root, {})

    assert roots > 12


@pytest.mark.parametrize("road", NAMING_CALL)
def test_a_finished_conversation_survives_a_power_cut(disk: Disk, road: str) -> None:
    with tracer(road) as traced:
        run = traced.run(disk.path / "root")
    disk.cut_power()

    with disk.after_the_cut() as path:
        assert contents_at_rest(path / "root") == sorted(TEXTS.values())
        check_survivors(path / "root", run.acknowledged)
    assert len(run.acknowledged) == 3


def test_a_record_found_unsynced_is_made_durable_before_it_is_acknowledged(disk: Disk) -> None:
    careless = LocalStore(str(disk.path / "root"), storage_options={"durability": "none"})
    Offloader(careless, session=SESSION).offload(MESSAGES)

    result = Offloader(disk.path / "root", session=SESSION).offload(MESSAGES)
    disk.cut_power()

    assert result.errors == []
    with disk.after_the_cut() as path:
        check_survivors(path / "root", replaced_in(result))


@pytest.mark.parametrize("neighbour_syncs", [False, True])
def test_what_was_never_synced_is_whole_or_missed_after_a_power_cut_never_other_bytes(
    disk: Disk, neighbour_syncs: bool
) -> None:
    with tracer(durability="none") as traced:
        traced.run(disk.path / "root")
    if neighbour_syncs:
        sync_a_file(disk.path / "of another program")
    disk.cut_power()

    with disk.after_the_cut() as path:
        fates = [fate(path / "root", index) for index in (2, 4, 6)]
    # That something is missed here proves that the cuts of this page cut.
    assert fates != ["whole"] * 3
    assert set(fates) <= {"whole", "absent", "damaged"}


def sync_a_file(path: Path) -> None:
    """Sync one file, which makes ext4 write its whole journal: names come to the disk without bytes."""
    with path.open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


def fate(root: Path, index: int) -> str:
    """Return what `restore` makes of the placeholder of message `index`."""
    placeholder = placeholders()[index]
    try:
        [message] = Offloader(root, session=SESSION).restore([placeholder])
    except CorruptError:
        return "damaged"
    except NotFoundError:
        return "absent"
    return "whole" if message == MESSAGES[index] else "other bytes"
