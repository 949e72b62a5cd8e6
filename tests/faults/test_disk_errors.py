"""The disk refuses: every error at every system call, then media that are full, read-only or another's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import prepared
import pytest
from faults.audit import names_not_synced, syncs_tried_again
from faults.conversation import (
    MESSAGES,
    SESSION,
    TEXTS,
    check_offloads,
    check_survivors,
    contents_at_rest,
    replaced_in,
    temporary_files,
)
from faults.media import administer, mounted
from faults.tracing import NAMING_CALL, NAMING_CALL_BY_PATH, Run, tracer

from offload import Offloader, OffloadResult, StoreError

REFUSABLE = ("openat", "mkdirat", "mkdir", "write", "fsync", "linkat", "link", "renameat2")
ERRORS = (
    "EIO",
    *(pytest.param(e, marks=pytest.mark.slow) for e in ("ENOSPC", "EMFILE", "EINTR", "EDQUOT", "EROFS")),
)
ROADS = (
    "unnamed",
    pytest.param("named", marks=pytest.mark.slow),
    pytest.param("renamed", marks=pytest.mark.slow),
    *(pytest.param(road, marks=pytest.mark.slow) for road in NAMING_CALL_BY_PATH),
)


def check_passed_through(run: Run, root: Path) -> None:
    """Assert that no turn raised, and that each either stored its items or left them with one error."""
    assert len(run.reports) == 3
    assert all(len(report["errors"]) <= 1 for report in run.reports)
    assert set(run.errors) <= {"store", "store_permission"}
    assert temporary_files(root) == []
    assert [names_not_synced(trace) for trace in run.until_each_report()] == [set()] * 3


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_at_any_system_call_keeps_the_message_and_the_next_turn_stores_it(
    tmp_path: Path, error: str, road: str
) -> None:
    with tracer(road) as traced:
        points = [p for p in traced.run(tmp_path / "whole").points() if p.syscall in REFUSABLE]
        for point in points:
            root = tmp_path / f"{point.syscall}-{point.nth}"
            run = traced.run(root, point.fault(f"error={error}"))
            assert run.shows("(INJECTED)"), point
            check_passed_through(run, root)
            assert len(run.acknowledged) == 3 - len(run.reports[-1]["errors"]), point
            assert error == "EINTR" or syncs_tried_again(run.trace) == [], point
            check_survivors(root, run.acknowledged)

    assert len(points) > (20 if road in NAMING_CALL else 12)


@pytest.mark.parametrize(
    ("error", "road"),
    [
        pytest.param(error, road, marks=() if place == other else pytest.mark.slow)
        for place, error in enumerate(["ENOSPC", "EIO", "EROFS"])
        for other, road in enumerate(NAMING_CALL)
    ],
)
def test_a_disk_that_keeps_refusing_costs_one_error_a_turn_and_works_once_it_is_mended(
    tmp_path: Path, error: str, road: str
) -> None:
    with tracer(road) as traced:
        for syscall in ("openat", "mkdirat", "write", "fsync", NAMING_CALL[road]):
            root = tmp_path / syscall
            run = traced.run(root, f"{syscall}:error={error}")
            check_passed_through(run, root)
            assert len(run.errors) == 3, syscall
            assert run.acknowledged == {}
            check_offloads(root)


# Media that cannot take it


def offload_in_part(root: Path, advice: str) -> OffloadResult:
    """Offload, asserting that what could not be stored stayed, with one error that gives `advice`."""
    result = Offloader(root, session=SESSION).offload(MESSAGES)
    [error] = result.errors
    assert isinstance(error, StoreError)
    assert str(root) in str(error)
    assert advice in str(error)
    assert 0 < len(result.records) < len(TEXTS)
    assert len(contents_at_rest(root)) == len(result.records)
    assert temporary_files(root) == []
    assert Offloader(root, session=SESSION).restore(result.messages) == MESSAGES
    return result


def test_a_full_medium_takes_what_fits_and_the_rest_once_there_is_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as path:
        ballast = path / "ballast"
        ballast.write_bytes(bytes(1024 * 1024 - 5 * 4096))

        result = offload_in_part(path / "root", "free space")
        ballast.unlink()
        check_survivors(path / "root", replaced_in(result))


def test_a_medium_without_inodes_takes_what_fits(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "nr_inodes=6", "tmpfs") as path:
        offload_in_part(path / "root", "free space")


def test_a_medium_that_became_read_only_is_read_and_refuses_what_is_new(tmp_path: Path) -> None:
    root = tmp_path / "root"
    Offloader(root, session=SESSION).offload(MESSAGES[:3])
    with mounted(tmp_path / "frozen", "--bind", root) as frozen:
        administer("mount", "-o", "remount,ro,bind", frozen)

        result = offload_in_part(frozen, "Read-only file system")

    check_survivors(root, replaced_in(result))


def test_an_immutable_folder_refuses_what_is_new(tmp_path: Path) -> None:
    root = tmp_path / "root"
    Offloader(root, session=SESSION).offload(MESSAGES[:3])
    folder = root / "r" / SESSION
    administer("chattr", "+i", folder)
    try:
        result = offload_in_part(root, "must belong to this user and be writable")
    finally:
        administer("chattr", "-i", folder)

    check_survivors(root, replaced_in(result))


LIMITS = {
    "user": ("os.setuid(65534)", "store_permission", "must belong to this user"),
    "file size": ("resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", "store", "raise the limit"),
    "open files": ("resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))", "store", "Too many open files"),
}
LIMITED = """
import json, os, resource, sys
from faults.conversation import MESSAGES, SESSION
from offload import Offloader
Offloader("memory://", session=SESSION).offload(MESSAGES)  # imports everything
offloader = Offloader(sys.argv[1], session=SESSION)
{limit}
result = offloader.offload(MESSAGES)
print(json.dumps([[e.kind, str(e)] for e in result.errors]), json.dumps(result.messages), sep="\\n")
"""


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_of_the_process_keeps_the_messages_and_says_what_would_help(
    tmp_path: Path, limit: str
) -> None:
    code, kind, advice = LIMITS[limit]
    if limit == "user" and os.geteuid() != 0:
        pytest.skip("only root can become another user")

    with prepared.start(LIMITED.format(limit=code), tmp_path / "root") as process:
        said, _ = process.communicate()

    errors, messages = (json.loads(line) for line in said.splitlines())
    assert [error[0] for error in errors] == [kind]
    assert advice in errors[0][1]
    assert messages == MESSAGES
    check_offloads(tmp_path / "root")
