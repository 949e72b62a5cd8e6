"""A large session in a folder: processes that list, write, index and are killed on it at once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import prepared
import pytest
from command import runner
from large import key_of

from offload import Offloader
from offload.records.index import reindex
from offload.records.index.catalog import Catalog

MANY = 6000
SESSION = "s"

LISTER = """
import sys
from offload import open_store
from offload.records.index.catalog import Catalog
store, count, rounds = open_store(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for _ in range(rounds):
    catalog = Catalog(store, "s")
    refs, page = [], catalog.page(limit=500)
    while page.infos:
        refs += [info.ref for info in page.infos]
        page = catalog.page(limit=500, after=refs[-1])
    assert len(set(refs)) == len(refs) >= count, (len(set(refs)), len(refs))
print("done")
"""

INDEXER = """
import sys
from offload import open_store
from offload.records.index import reindex
store, rounds = open_store(sys.argv[1]), int(sys.argv[2])
print("begun", flush=True)
for _ in range(rounds):
    reindex(store, "s")
print("done")
"""

WRITER = """
import sys
from offload import Offloader, OffloadPolicy
off = Offloader(sys.argv[1], session="s", storage_options={"durability": "none"})
for n in range(int(sys.argv[3])):
    off.offload_text(f"{sys.argv[2]} {n}\\n" * 3000, tool_use_id=f"{sys.argv[2]}-{n}")
    newest = off.tools.list(limit=1).splitlines()
    assert len(newest) == 3, newest
print("done")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with many records in one session: files under their names, made past it."""
    root = tmp_path / "store"
    (root / "r" / SESSION).mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    for number in range(MANY):
        file = root / key_of(number, SESSION)
        file.write_bytes(b"data")
        os.utime(file, (number, number))
    return root


def records_in(root: Path) -> set[str]:
    return {f"r/{SESSION}/{file.name}" for file in (root / "r" / SESSION).iterdir() if file.name[0] != "."}


def snapshots_in(root: Path) -> int:
    return len(list((root / "i").glob("*/*~*")))


def shown(root: Path) -> set[str]:
    catalog = Catalog(Offloader(str(root)).store, SESSION)
    return {info.key for info in catalog.page(limit=10**6).infos}


def test_listing_writing_and_indexing_at_once_lose_nothing(root: Path) -> None:
    processes = [
        *(prepared.start(LISTER, root, MANY, 3) for _ in range(2)),
        *(prepared.start(INDEXER, root, 4) for _ in range(2)),
        *(prepared.start(WRITER, root, name, 10) for name in ("one", "two")),
    ]
    for process in processes:
        said, complained = process.communicate()
        assert said.endswith("done\n"), complained
    assert len(records_in(root)) == MANY + 20
    assert reindex(Offloader(str(root)).store, SESSION) == MANY + 20
    assert shown(root) == records_in(root)


def test_an_indexer_that_is_killed_at_any_moment_leaves_what_others_can_use(root: Path) -> None:
    # On a busy machine the first snapshot takes longer than on an idle one.
    for moment in (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 1.2, 2.4, 4.8, 9.6):
        if moment > 0.6 and snapshots_in(root):
            break
        process = prepared.start(INDEXER, root, 1000)
        assert process.stdout.readline() == "begun\n"
        time.sleep(moment)
        assert process.poll() is None
        process.kill()
        process.communicate()
        assert shown(root) == records_in(root)
    assert snapshots_in(root) >= 1


def test_the_tools_show_what_was_just_stored_first_in_a_session_that_was_listed_before(root: Path) -> None:
    off = Offloader(str(root), session=SESSION)
    assert off.tools.list(limit=1).startswith(f"[{MANY} stored, 1-1 shown")
    placeholder = off.offload_text("a line of output\n" * 3000, tool_name="Build")
    first, row, _ = off.tools.list(limit=1).splitlines()
    assert first.startswith(f"[{MANY + 1} stored")
    assert row.partition(" ")[0] in placeholder
    assert "[1 match" in off.tools.grep("a line of output", row.partition(" ")[0], max_matches=1)
    assert off.tools.list(tool="Build").splitlines()[1] == row


def test_the_command_says_how_many_records_each_session_has(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Offloader(str(root), session="small").offload_text("a line of output\n" * 3000)
    offload = runner(capsys, monkeypatch)
    done = offload("doctor", "--reindex", "--store", root, "--json")
    assert json.loads(done.stdout)["sessions"] == [
        {"session": "s", "records": MANY},
        {"session": "small", "records": 1},
    ]
    assert snapshots_in(root) == 1
    done = offload("doctor", "--reindex", "--store", root, "--json", "--session", "small")
    assert json.loads(done.stdout)["sessions"] == [{"session": "small", "records": 1}]
