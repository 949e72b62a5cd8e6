"""`offload bench`: every operation is timed on the store itself, and nothing of it stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offload import StoreError, open_store
from offload.cli.bench import measured, plain_store

OPERATIONS = ["put 10 KB", "get 10 KB", "put 1 MB", "get 1 MB", "get 8 KB of 1 MB", "list the small ones"]


def run_bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offload", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_each_operation_is_timed_beside_plain_fsspec_and_nothing_stays(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    open_store(folder).put("r/one/kept", b"mine")
    before = files_in(folder)

    done = run_bench(folder, "--json")

    rows = json.loads(done.stdout)
    assert [row["operation"] for row in rows] == OPERATIONS
    assert all(row["seconds"] > 0 and row["plain_seconds"] > 0 for row in rows)
    assert files_in(folder) == before


def test_the_table_has_a_row_for_each_operation(tmp_path: Path) -> None:
    lines = run_bench(tmp_path / "store").stdout.splitlines()

    assert lines[0].split() == ["operation", "median", "plain", "fsspec", "ratio"]
    assert [line.partition("  ")[0] for line in lines[1:]] == OPERATIONS


def test_a_store_in_memory_has_nothing_beside_it() -> None:
    rows = json.loads(run_bench("memory://", "--json").stdout)

    assert [row["plain_seconds"] for row in rows] == [None] * len(OPERATIONS)


def test_the_listing_shows_what_was_put(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    listed: list[int] = []
    keys = store.keys

    def counted(prefix: str = "", *, after: str = "") -> Any:
        found = list(keys(prefix, after=after))
        listed.append(len(found))
        return iter(found)

    store.keys = counted  # type: ignore[method-assign]  # it is the store's own listing, counted

    measured(store, plain_store(store.url, {}))

    assert 20 in listed


def test_a_store_that_fails_on_the_way_is_left_clean(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    def broken(*_: object, **__: object) -> bytes:
        raise StoreError("no reads today")

    store.get = broken  # type: ignore[method-assign]  # the fault
    with pytest.raises(StoreError, match="no reads today"):
        measured(store, None)

    assert files_in(tmp_path) == []
