"""The writer dies by `kill -9` before each of its system calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.audit import names_not_synced
from faults.conversation import check_survivors, temporary_files
from faults.tracing import NAMING_CALL, Point, tracer

from offload_backends.local import LocalStore


@pytest.mark.parametrize(
    ("road", "durability", "codec"),
    [
        ("unnamed", "fsync", "zstd"),
        pytest.param("unnamed", "none", "zstd", marks=pytest.mark.slow),
        pytest.param("renamed", "none", "zstd", marks=pytest.mark.slow),
        pytest.param("renamed", "fsync", "zstd", marks=pytest.mark.slow),
        pytest.param("named", "none", "zstd", marks=pytest.mark.slow),
        pytest.param("named", "fsync", "zstd", marks=pytest.mark.slow),
        pytest.param("unnamed", "fsync", "raw", marks=pytest.mark.slow),
        pytest.param("a refusing rename only", "none", "zstd", marks=pytest.mark.slow),
        pytest.param("a refusing rename only", "fsync", "zstd", marks=pytest.mark.slow),
        pytest.param("no folder handles", "none", "zstd", marks=pytest.mark.slow),
        pytest.param("no folder handles", "fsync", "zstd", marks=pytest.mark.slow),
    ],
)
def test_a_writer_killed_at_any_system_call_leaves_whole_records_and_all_it_acknowledged(
    tmp_path: Path, road: str, durability: str, codec: str
) -> None:
    with tracer(road, durability, codec) as traced:
        points = traced.run(tmp_path / "whole").points()
        for point in points:
            root = tmp_path / f"{point.syscall}-{point.nth}"
            run = traced.run(root, point.fault("signal=KILL"))
            assert run.shows("killed by SIGKILL"), point
            assert road != "unnamed" or temporary_files(root) == [], point
            check_survivors(root, run.acknowledged, codec)

    assert len(points) > (30 if road in NAMING_CALL else 20)


@pytest.mark.parametrize("road", NAMING_CALL)
def test_nothing_is_acknowledged_before_the_folder_that_names_it_is_synced(tmp_path: Path, road: str) -> None:
    with tracer(road) as traced:
        run = traced.run(tmp_path / "root")

    assert [names_not_synced(trace) for trace in run.until_each_report()] == [set()] * 3
    assert sum(line.startswith(NAMING_CALL[road]) for line in run.trace) == 3


@pytest.mark.parametrize("road", NAMING_CALL)
def test_a_record_whose_writer_died_before_its_sync_is_synced_by_who_finds_it(
    tmp_path: Path, road: str
) -> None:
    with tracer(road) as traced:
        points = traced.run(tmp_path / "whole").points()
        named = points.index(Point(NAMING_CALL[road], 1))
        next_sync = next(point for point in points[named:] if point.syscall == "fsync")
        killed = traced.run(tmp_path / "root", next_sync.fault("signal=KILL"))
        assert len(names_not_synced(killed.trace)) == 1
        again = traced.run(tmp_path / "root")

    assert [names_not_synced(killed.trace + trace) for trace in again.until_each_report()] == [set()] * 3


# What killed writers leave where files need a temporary name


def aged(path: Path, seconds: float) -> Path:
    """Write a file that was last written to `seconds` ago."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half")
    written = path.stat().st_mtime - seconds
    os.utime(path, (written, written))
    return path


def test_temporary_files_older_than_an_hour_are_swept_from_the_folder_written_to(tmp_path: Path) -> None:
    abandoned = aged(tmp_path / "a" / ".tmp-0123456789abcdef", 3700)
    in_use = aged(tmp_path / "a" / ".tmp-fedcba9876543210", 3500)
    foreign = aged(tmp_path / "a" / ".tmp-of-someone-else", 3700)
    record = aged(tmp_path / "a" / "record", 3700)
    elsewhere = aged(tmp_path / "b" / ".tmp-0123456789abcdef", 3700)

    LocalStore(str(tmp_path)).put("a/index", b"x", overwrite=True)

    assert not abandoned.exists()
    assert all(path.exists() for path in (in_use, foreign, record, elsewhere))


def test_a_folder_is_searched_for_litter_once_and_only_where_litter_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    searched = []
    real_scandir = os.scandir

    def watched(folder: int) -> object:
        searched.append(Path(f"/proc/self/fd/{folder}").readlink())
        return real_scandir(folder)

    monkeypatch.setattr(os, "scandir", watched)
    store.put("a/record", b"x")
    assert searched == []

    for key in ("a/one", "a/two", "b/one", "a/one"):
        store.put(key, b"x", overwrite=True)
    assert searched == [tmp_path / "a", tmp_path / "b"]
