"""Inventories: lists of a bucket that its provider writes every day or week, read instead of listings.

The manifest names the files, in CSV or Parquet: `manifest.json` of S3 Inventory, `RULE-manifest.json` of blob
inventory in Azure, that of a report of Storage Insights in Google Cloud (CSV with a header). Rows are in no
order, so the keys of the store are sorted in a temporary database on this machine.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote_plus, urlsplit

from offload.errors import (
    ConfigError,
    CorruptError,
    NotFoundError,
    OffloadError,
    StorePermissionError,
    needs_extra,
)
from offload.store import OffloadStore, StoredObject
from offload.wrappers import ReadOnlyStore

_PAGE = 10_000
_MOST_MANIFEST_BYTES = 64 * 1024 * 1024
_CLOUDS = ("s3", "gs", "gcs", "az", "abfs", "abfss")
# After the last character that a key can have.
_END = "\x7f"
_LIST = "SELECT * FROM rows WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?"


class _Columns(NamedTuple):
    """The names of the columns of an inventory that are read; `bucket` is None if the key begins with it."""

    key: str
    size: str
    modified: str
    bucket: str | None
    flags: Mapping[str, str]


# Only the newest version of an object counts: a column and the value that such a row has.
_S3 = _Columns("Key", "Size", "LastModifiedDate", "Bucket", {"IsLatest": "true", "IsDeleteMarker": "false"})
_S3_PARQUET = _Columns(
    "key", "size", "last_modified_date", "bucket", {"is_latest": "true", "is_delete_marker": "false"}
)
_AZURE = _Columns(
    "Name",
    "Content-Length",
    "Last-Modified",
    None,
    {"Snapshot": "", "IsCurrentVersion": "true", "Deleted": "false"},
)
_GOOGLE = _Columns("name", "size", "updated", "bucket", {"timeDeleted": ""})


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A manifest: `names` are those of the columns of a CSV file without a header."""

    files: Sequence[str]
    taken_at: float
    columns: _Columns
    is_parquet: bool = False
    names: Sequence[str] | None = None
    has_escapes: bool = False
    delimiter: str = ","


class InventoryStore(ReadOnlyStore):
    """A store that is listed from an inventory: what changed since is not in it, and nothing can be changed.

    Attributes:
        taken_at: when the inventory was begun, in seconds since the epoch.
    """

    def __init__(self, inner: OffloadStore, taken_at: float, rows: Iterable[tuple[str, int, float]]) -> None:
        super().__init__(inner)
        self.taken_at = taken_at
        # A private file that is deleted with the connection; SQLite serializes the threads.
        self._rows = sqlite3.connect("", check_same_thread=False)
        self._rows.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, size, modified) WITHOUT ROWID")
        self._rows.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", rows)
        self._rows.commit()

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects that the inventory lists; see `OffloadStore.keys`."""
        end = prefix + _END
        while page := self._rows.execute(_LIST, (prefix, after, end, _PAGE)).fetchall():
            for key, size, modified in page:
                yield StoredObject(key, size, modified)
            after = page[-1][0]

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the folders that the inventory lists; see `SupportsFolders.folders`."""
        parts = (stored.key.removeprefix(prefix).partition("/") for stored in self.keys(prefix))
        yield from (name for name, _ in groupby(name for name, slash, _ in parts if slash))

    def _refusal(self, key: str) -> StorePermissionError:
        super()._refusal(key)
        return StorePermissionError(f"{self.url}: an inventory is read-only; open the store itself")


def open_inventory(store: OffloadStore, manifest: str) -> InventoryStore:
    """Return `store` as an inventory of its bucket lists it; contents are read from the store itself.

    Args:
        store: a store in a bucket of S3, Google or Azure.
        manifest: the path of the inventory's manifest, with the other files where it says or next to it; or
            its URL, which `offload[arrow]` opens with the credentials of this process.

    Raises:
        ConfigError: `store` is in no bucket, or the inventory lacks the size or the time of objects.
        CorruptError: a file of the inventory cannot be read as what the manifest says.
        MissingExtraError: the extra `arrow`, for a URL or Parquet, is not installed.
        NotFoundError: a file is not there, or the inventory has no object of the store.
    """
    files = _Files(manifest)
    found = _manifest(files.manifest(), manifest)
    inventory = InventoryStore(store, found.taken_at, _rows(files, found, _root(store)))
    if next(inventory.keys(), None) is None:
        raise NotFoundError(f"the inventory {manifest} has no object of {store.url}")
    return inventory


def _root(store: OffloadStore) -> str:
    """Return the bucket and the prefix of a store, and a slash."""
    parts = urlsplit(store.url)
    if parts.scheme not in _CLOUDS:
        raise ConfigError(f"{store.url} is in no bucket, so no inventory lists it")
    return f"{parts.netloc.partition('@')[0]}/{parts.path.strip('/')}".rstrip("/") + "/"


class _Files:
    """The files of an inventory, on this machine or at a URL."""

    def __init__(self, manifest: str) -> None:
        self._fs: Any = None
        path = manifest
        if "://" in manifest:
            with needs_extra("arrow"):
                from pyarrow import fs  # noqa: PLC0415  # of an extra
            try:
                self._fs, path = fs.FileSystem.from_uri(manifest)
            except (OSError, ValueError) as error:
                raise ConfigError(f"cannot open the inventory {manifest}: {error}") from error
        self._manifest = PurePosixPath(path)

    def manifest(self) -> bytes:
        with self.opened(self._manifest.name) as file:
            return file.read(_MOST_MANIFEST_BYTES)

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file by its name in the manifest: as below the bucket, or a copy next to the manifest."""
        path_in_bucket = PurePosixPath(name)
        if path_in_bucket.is_absolute() or ".." in path_in_bucket.parts:
            raise CorruptError(
                f"the inventory {self._manifest} names a file outside of its bucket: {name!r:.200}"
            )
        folder, last = self._manifest.parent, path_in_bucket.name
        places = [*(above / name for above in (folder, *folder.parents))]
        places += [folder / last, folder.parent / "data" / last]
        path = next((place for place in places if self._has(place)), None)
        if path is None:
            raise NotFoundError(f"the inventory {self._manifest} has no file {name}")
        with Path(path).open("rb") if self._fs is None else self._fs.open_input_file(str(path)) as file:
            yield file

    def _has(self, place: PurePosixPath) -> bool:
        if self._fs is None:
            return Path(place).is_file()
        return bool(self._fs.get_file_info(str(place)).is_file)


def _manifest(data: bytes, place: str) -> _Manifest:
    try:
        fields = json.loads(data)
        if "fileSchema" in fields:
            return _of_s3(fields)
        if "inventoryStartTime" in fields:
            return _of_azure(fields)
        if "report_shards_file_names" in fields:
            return _of_google(fields)
    except OffloadError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptError(f"{place} is not a manifest of an inventory: {error!r:.200}") from error
    raise CorruptError(f"{place} is not a manifest of S3, Azure or Google")


def _of_s3(fields: Mapping[str, Any]) -> _Manifest:
    kind = fields["fileFormat"]
    if kind not in ("CSV", "Parquet"):
        raise ConfigError(f"cannot read an inventory in {kind!r:.20}; choose CSV or Parquet")
    names = [file["key"] for file in fields["files"]]
    taken_at = int(fields["creationTimestamp"]) / 1000
    if kind == "Parquet":
        return _Manifest(names, taken_at, _S3_PARQUET, is_parquet=True)
    columns = [name.strip() for name in fields["fileSchema"].split(",")]
    return _Manifest(names, taken_at, _S3, names=columns, has_escapes=True)


def _of_azure(fields: Mapping[str, Any]) -> _Manifest:
    if fields.get("status") != "Succeeded":
        raise ConfigError(f"the run of the inventory has the status {fields.get('status')!r:.30}")
    names = [file["blob"] for file in fields["files"]]
    is_parquet = fields["ruleDefinition"]["format"].lower() == "parquet"
    return _Manifest(names, _seconds(fields["inventoryStartTime"]), _AZURE, is_parquet=is_parquet)


def _of_google(fields: Mapping[str, Any]) -> _Manifest:
    names = fields["report_shards_file_names"]
    is_parquet = all(name.endswith(".parquet") for name in names)
    options = fields.get("report_config", {}).get("csv_options", {})
    delimiter = options.get("delimiter") or ","
    return _Manifest(
        names, _seconds(fields["snapshot_time"]), _GOOGLE, is_parquet=is_parquet, delimiter=delimiter
    )


def _rows(files: _Files, manifest: _Manifest, root: str) -> Iterator[tuple[str, int, float]]:
    """Yield the keys below a bucket and prefix with their sizes and times."""
    columns = manifest.columns
    for name in manifest.files:
        with files.opened(name) as file:
            try:
                rows = _parquet(file, name, columns) if manifest.is_parquet else _csv(file, name, manifest)
                for row in rows:
                    if any(_text(row.get(flag, wanted)) != wanted for flag, wanted in columns.flags.items()):
                        continue
                    key = unquote_plus(row[columns.key]) if manifest.has_escapes else row[columns.key]
                    place = key if columns.bucket is None else f"{row[columns.bucket]}/{key}"
                    if place.startswith(root) and len(place) > len(root):
                        yield place[len(root) :], int(row[columns.size]), _seconds(row[columns.modified])
            except OffloadError:
                raise
            except (ValueError, KeyError, TypeError, OSError, EOFError, csv.Error, zlib.error) as error:
                raise CorruptError(f"file {name} of the inventory cannot be read: {error!r:.200}") from error


def _csv(file: BinaryIO, name: str, manifest: _Manifest) -> Iterator[dict[str, Any]]:
    data = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
    with io.TextIOWrapper(data, "utf-8", newline="") as lines:
        rows = csv.DictReader(lines, manifest.names, delimiter=manifest.delimiter)
        _check_columns(rows.fieldnames or (), name, manifest.columns)
        yield from rows


def _parquet(file: BinaryIO, name: str, columns: _Columns) -> Iterator[dict[str, Any]]:
    with needs_extra("arrow"):
        import pyarrow.parquet as pq  # noqa: PLC0415  # of an extra
    table = pq.ParquetFile(file)
    there = table.schema_arrow.names
    _check_columns(there, name, columns)
    wanted = {*columns[:4], *columns.flags}
    for batch in table.iter_batches(columns=[column for column in there if column in wanted]):
        yield from batch.to_pylist()


def _check_columns(there: Iterable[str], name: str, columns: _Columns) -> None:
    missing = {column for column in columns[:4] if column is not None} - {*there}
    if missing:
        raise ConfigError(
            f"file {name} of the inventory lacks {', '.join(sorted(missing))}: add them to the inventory"
        )


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower()


def _seconds(value: Any) -> float:
    """Return a time in seconds since the epoch, from ISO 8601, the form of HTTP, a time or milliseconds."""
    if isinstance(value, int | float):
        return value / 1000
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = parsedate_to_datetime(value)
    return float((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
