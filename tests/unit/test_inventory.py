"""Stores that are listed from an inventory of their bucket."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import runner
from inventories import KINDS, TAKEN_AT, BucketStore, azure, s3
from servers import Bucket

from offload import ConfigError, CorruptError, NotFoundError, Offloader, Retention, StorePermissionError
from offload.catalog import inventory as inventories
from offload.catalog import open_inventory
from offload.cli.listing import _sessions
from offload.index import sessions
from offload.retention import collect, delete, pin, usage
from offload.store import OffloadStore, folders
from offload.timeline.titles import list_journals
from offload_backends.memory import MemoryStore

every_kind = pytest.mark.parametrize("kind", [*KINDS])


def filled() -> OffloadStore:
    store = MemoryStore()
    for name in ("a", "a-b", "Ümläut", "long name " * 20):
        off = Offloader(store, session=name, journal=True)
        for tool in ("Bash", "Read"):
            off.offload_text(f"{tool} of {name}\n" * 900, tool_name=tool)
    pin(store, "a")
    delete(store, "a-b")
    return store


@every_kind
def test_a_store_is_listed_from_its_inventory_as_from_itself(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventories, "_PAGE", 5)
    url, written = KINDS[kind]
    store = BucketStore(filled(), url)
    listed = open_inventory(store, str(written(store, tmp_path)))

    def seen(one: OffloadStore) -> list[Any]:
        keys = [(key.key, key.size) for key in one.keys("r/a")]
        after = [key.key for key in one.keys("r/", after=keys[2][0])]
        return [keys, after, [*folders(one, "r/")], [*sessions(one)], len([*one.keys()])]

    assert seen(listed) == seen(store)
    times = [[key.modified for key in one.keys()] for one in (listed, store)]
    assert times[0] == pytest.approx(times[1], abs=0.002)
    assert [(u.session, u.records, u.marked, u.pinned) for u in usage(listed)] == [
        (u.session, u.records, u.marked, u.pinned) for u in usage(store)
    ]
    assert len([*_sessions(listed)]) == 4
    assert list_journals(listed).keys() == list_journals(store).keys()
    assert listed.taken_at == TAKEN_AT


@every_kind
def test_an_inventory_alone_decides_no_deletion(kind: str, tmp_path: Path) -> None:
    url, written = KINDS[kind]
    store = BucketStore(filled(), url)
    listed = open_inventory(store, str(written(store, tmp_path)))
    before = [key.key for key in store.keys()]
    for change in (
        lambda: collect(listed, Retention(store_records=1, live_for=0)),
        lambda: delete(listed, "a"),
        lambda: Offloader(listed, session="a", on_error="raise").offload_text("x\n" * 9000),
    ):
        with pytest.raises(StorePermissionError, match="an inventory is read-only"):
            change()
    assert [key.key for key in store.keys()] == before


def edited(manifest: Path, **fields: Any) -> str:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | fields))
    return str(manifest)


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"fileFormat": "ORC"}, ConfigError, "cannot read an inventory in 'ORC'"),
        ({"fileSchema": "Bucket, Key"}, ConfigError, "lacks LastModifiedDate, Size: add them"),
        ({"files": [{"key": "data/none.csv.gz"}]}, NotFoundError, "has no file data/none.csv.gz"),
        ({"creationTimestamp": "yesterday"}, CorruptError, "not a manifest of an inventory"),
        ({"files": [{"key": "/etc/hosts"}]}, CorruptError, "outside of its bucket: '/etc/hosts'"),
        ({"files": [{"key": "a/../../b"}]}, CorruptError, "outside of its bucket"),
        (
            {"fileSchema": "Key, Bucket, LastModifiedDate, Size"},
            NotFoundError,
            "has no object of s3://bucket",
        ),
        (
            {"fileSchema": "Bucket, Key, Size, LastModifiedDate, ETag, A, B, C"},
            CorruptError,
            "0b1c.csv.gz of the inventory cannot be read",
        ),
    ],
)
def test_an_inventory_that_cannot_be_read_says_why(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception], said: str
) -> None:
    store = BucketStore(filled(), "s3://bucket/prefix")
    with pytest.raises(error, match=said):
        open_inventory(store, edited(s3(store, tmp_path), **fields))


def test_what_is_no_inventory_of_the_store_is_refused(tmp_path: Path) -> None:
    store = BucketStore(filled(), "az://bucket/prefix")
    with pytest.raises(ConfigError, match="status 'Running'"):
        open_inventory(store, edited(azure(store, tmp_path), status="Running"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(CorruptError, match="not a manifest of S3, Azure or Google"):
        open_inventory(store, str(tmp_path / "list.json"))
    with pytest.raises(NotFoundError, match=r"has no file none\.json"):
        open_inventory(store, str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="is in no bucket"):
        open_inventory(store.inner, str(azure(store, tmp_path)))


def test_commands_read_an_inventory_and_say_its_age(
    s3_bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in s3_bucket.storage_options.items():
        monkeypatch.setenv(f"OFFLOAD_STORAGE_OPTIONS__{name.upper()}", str(value))
    monkeypatch.setenv("OFFLOAD_STORE", s3_bucket.url)
    off = Offloader(s3_bucket.url, session="a", storage_options=s3_bucket.storage_options)
    off.offload_text("a line\n" * 9000, tool_name="Bash")
    manifest = s3(off.store, tmp_path)
    rows = manifest.parents[1] / "data" / "0b1c.csv.gz"
    rows.write_bytes(
        gzip.compress(gzip.decompress(rows.read_bytes()).replace(b'"bucket"', bucket_of(s3_bucket)))
    )
    off.offload_text("another line\n" * 9000, tool_name="Bash")
    run = runner(capsys, monkeypatch)

    listed = run("ls", "--inventory", manifest, "--json")
    used = run("du", "--inventory", manifest, "--json")
    records = run("ls", "--inventory", manifest, "--session", "a", "--json")

    assert listed.returncode == 0, listed.stderr
    assert [row["records"] for row in json.loads(listed.stdout)["sessions"]] == [1]
    assert json.loads(used.stdout)["total"]["records"] == 1
    assert [row["title"] for row in json.loads(records.stdout)["records"]] == ["a line"]
    for done in (listed, used, records):
        assert re.search(
            r"from an inventory of 2026-11-18 \d\d:\d\d UTC, .*: what changed since is not in it", done.stderr
        )
    assert "omit them with --inventory" in run("du", "--inventory", manifest, "--workers", "2").stderr


def bucket_of(bucket: Bucket) -> bytes:
    return f'"{bucket.name}"'.encode()
