"""Inventories of a bucket as its provider would write them, from what a store lists."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from offload.store import OffloadStore, StoredObject
from offload.wrappers import WrapperStore

TAKEN_AT = 1_795_000_000


class BucketStore(WrapperStore):
    """A store that says that it is in a bucket."""

    def __init__(self, inner: OffloadStore, url: str) -> None:
        super().__init__(inner)
        self._url = url

    @property
    def url(self) -> str:
        return self._url


def rows_of(store: OffloadStore) -> list[StoredObject]:
    """Return the objects of a bucket in no order: those of the store, and others."""
    listed = [StoredObject(f"prefix/{one.key}", one.size, one.modified) for one in store.keys()]
    listed += [StoredObject("prefix2/r/s/x", 1, 1.0), StoredObject("Readme (1).md", 2, 2.0)]
    random.Random(1).shuffle(listed)  # noqa: S311 # reproducible
    return listed


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def s3(store: OffloadStore, folder: Path) -> Path:
    """Write S3 Inventory of all versions as CSV, as AWS lays it out; return the path of its manifest."""
    schema = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"
    rows: list[Sequence[object]] = []
    for one in rows_of(store):
        key = quote(one.key)
        rows.append(("bucket", key, "v2", "true", "false", one.size, iso(one.modified), "e"))
        rows.append(("bucket", key, "v1", "false", "false", one.size + 5, iso(1), "e"))
    rows.append(("bucket", "prefix/r/gone/a", "v2", "true", "true", "", iso(1), ""))
    name = "inv/bucket/daily/data/0b1c.csv.gz"
    write(folder / name, gzip.compress(as_csv(rows, quoting=csv.QUOTE_ALL)))
    manifest = {
        "sourceBucket": "bucket",
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": str(TAKEN_AT * 1000),
        "fileFormat": "CSV",
        "fileSchema": schema,
        "files": [{"key": name, "size": 1, "MD5checksum": "0"}],
    }
    place = folder / "inv/bucket/daily/2026-11-18T01-00Z/manifest.json"
    return write(place, json.dumps(manifest).encode())


def azure(store: OffloadStore, folder: Path) -> Path:
    names = ["Name", "Last-Modified", "Content-Length", "Snapshot"]
    rows = [(f"bucket/{one.key}", iso(one.modified), one.size, "") for one in rows_of(store)]
    rows.append(("bucket/prefix/r/s/x", iso(1), 1, "2026-01-01T00:00:00Z"))
    write(folder / "2026/11/18/01-00-00/Rule_1/Rule_1.csv", as_csv([names, *rows]))
    manifest = {
        "destinationContainer": "inventories",
        "files": [{"blob": "2026/11/18/01-00-00/Rule_1/Rule_1.csv", "size": 1}],
        "inventoryCompletionTime": iso(TAKEN_AT + 60),
        "inventoryStartTime": iso(TAKEN_AT),
        "ruleDefinition": {"format": "csv", "objectType": "blob", "schemaFields": names},
        "status": "Succeeded",
    }
    # Both files were copied into one folder.
    return write(folder / "2026/11/18/01-00-00/Rule_1/Rule_1-manifest.json", json.dumps(manifest).encode())


def google(store: OffloadStore, folder: Path) -> Path:
    names = ["bucket", "name", "size", "updated", "timeDeleted"]
    rows = [("bucket", one.key, one.size, iso(one.modified), "") for one in rows_of(store)]
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        write(folder / f"report_{number}.csv", as_csv([names, *part], delimiter=";"))
    manifest = {
        "report_config": {"csv_options": {"delimiter": ";", "header_required": True}},
        "records_processed": len(rows),
        "snapshot_time": iso(TAKEN_AT),
        "shard_count": 2,
        "report_shards_file_names": ["report_0.csv", "report_1.csv"],
    }
    return write(folder / "report_manifest.json", json.dumps(manifest).encode())


def as_csv(rows: Sequence[Sequence[object]], **form: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, **form).writerows(rows)
    return text.getvalue().encode()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


KINDS: dict[str, tuple[str, Callable[[OffloadStore, Path], Path]]] = {
    "S3": ("s3://bucket/prefix", s3),
    "Azure": ("abfss://bucket@account.dfs.core.windows.net/prefix", azure),
    "Google": ("gs://bucket/prefix/", google),
}
