"""A catalog of a store in Parquet files, added to by each run.

    records/<run>-<part>.parquet    rows of records
    requests/<run>-<part>.parquet   rows of requests, if asked for
    runs/<run>.json                 the manifest of a run, written last, under the next free number

A run takes what changed since a day before the newest change that earlier runs took: an upload in parts may
have the time when it began. So rows recur, and the newest row of a key or request counts. Files without a
manifest are from a killed run; their rows are correct, and the next run writes these again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from offload.errors import CorruptError, NotFoundError
from offload.maintenance.catalog.batches import RECORDS, REQUESTS, record_batches, request_batches, schema_of
from offload.storage.layout import random_letters
from offload.storage.registry import folder_of
from offload.storage.store import OffloadStore, create

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_ROWS = 500_000
_OVERLAP_SECONDS = 24 * 3600
_RUNS = "runs/"
# The time of an object that gc emptied is not that of its record, which an earlier row may have.
_VIEWS = {
    "records": """CREATE OR REPLACE VIEW records AS SELECT * EXCLUDE (place) FROM (
  SELECT * REPLACE (min(created_at) OVER (PARTITION BY key) AS created_at),
    row_number() OVER (PARTITION BY key ORDER BY changed_at DESC, stored_bytes) AS place
  FROM read_parquet('{place}/records/*.parquet')) WHERE place = 1;""",
    "requests": """CREATE OR REPLACE VIEW requests AS SELECT * EXCLUDE (place) FROM (
  SELECT *, row_number() OVER (PARTITION BY session, number ORDER BY changed_at DESC) AS place
  FROM read_parquet('{place}/requests/*.parquet')) WHERE place = 1;""",
}


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of `export_catalog`.

    Attributes:
        run: the number of the run, from 1.
        records: rows of records.
        requests: rows of requests.
        files: the keys of the new files in the target.
    """

    run: int
    records: int
    requests: int
    files: list[str]


class _RunManifest(msgspec.Struct):
    """The content of `runs/<run>.json`; times are in seconds by the store's clock."""

    store: str
    since: float
    until: float
    files: list[str]


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_MANIFESTS = msgspec.json.Decoder(_RunManifest)


@dataclass(slots=True)
class _Written:
    """The files of one kind of row: their keys, their rows and the newest change in them."""

    files: list[str] = field(default_factory=list)
    rows: int = 0
    until: float = 0.0


def export_catalog(
    store: OffloadStore,
    target: OffloadStore,
    *,
    requests: bool = False,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Add what changed in the catalog of `store` to the Parquet files of `target`.

    Args:
        store: the store; it is only listed.
        target: where the files are; not the same place.
        requests: whether the requests of sessions with a journal are exported too.
        executor: as for `record_batches`.
        storage_options: as for `record_batches`.

    Raises:
        ConfigError: workers in other processes cannot open the store by its URL.
        CorruptError: the manifest of the last run cannot be read.
        MissingExtraError: the extra `arrow` is not installed.
        StoreError: a store failed, or a worker was lost.
    """
    last = _last_manifest(target)
    since = 0.0 if last is None else max(0.0, last.until - _OVERLAP_SECONDS)
    name = random_letters()
    options: dict[str, Any] = {"since": since, "executor": executor, "storage_options": storage_options}
    records, sent = _write(target, "records", name, record_batches(store, **options), RECORDS), _Written()
    if requests:
        sent = _write(target, "requests", name, request_batches(store, **options), REQUESTS)
    files = [*records.files, *sent.files]
    # Only the times of records are by the store's clock.
    until = max(records.until, 0.0 if last is None else last.until)
    run = _put_manifest(target, _RunManifest(store.url, since, until, files))
    return ExportReport(run, records.rows, sent.rows, files)


def views(target: OffloadStore) -> str:
    """Return SQL for DuckDB that defines a view of the newest rows of each kind that was exported.

    Raises:
        NotFoundError: nothing was exported to `target`.
        StoreError: it cannot be listed.
    """
    place = str(folder_of(target) or target.url).replace("'", "''")
    found = [view.format(place=place) for kind, view in _VIEWS.items() if any(target.keys(f"{kind}/"))]
    if not found:
        raise NotFoundError(f"no catalog was exported to {target.url}")
    return "\n".join(found)


def _write(
    target: OffloadStore, kind: str, run: str, found: Iterator[pa.RecordBatch], columns: Mapping[str, str]
) -> _Written:
    """Write batches to files of at most 500,000 rows; the first run writes a file without a row too."""
    written, schema = _Written(), schema_of(columns)
    import pyarrow.compute as pc  # noqa: PLC0415  # of an extra
    import pyarrow.parquet as pq  # noqa: PLC0415  # of an extra

    is_first = not any(target.keys(f"{kind}/"))
    batch = next(found, None)
    while batch is not None or (is_first and not written.files):
        data, rows = io.BytesIO(), 0
        with pq.ParquetWriter(data, schema, compression="zstd") as writer:
            while batch is not None and rows < _FILE_ROWS:
                writer.write_batch(batch)
                rows += batch.num_rows
                written.until = max(written.until, pc.max(batch["changed_at"]).as_py().timestamp())
                batch = next(found, None)
        key = f"{kind}/{run}-{len(written.files):04}.parquet"
        target.put(key, data.getvalue())
        written.files.append(key)
        written.rows += rows
    return written


def _last_manifest(target: OffloadStore) -> _RunManifest | None:
    keys = [stored.key for stored in target.keys(_RUNS)]
    if not keys:
        return None
    try:
        return _MANIFESTS.decode(target.get(keys[-1]))
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{target.url}: {keys[-1]} is not a manifest of an export: {error}") from error


def _put_manifest(target: OffloadStore, manifest: _RunManifest) -> int:
    """Create the manifest under the next free number; return that."""
    data = msgspec.json.format(msgspec.json.encode(manifest))
    run = 1 + sum(1 for _ in target.keys(_RUNS))
    while not create(target, f"{_RUNS}{run:09}.json", data):
        run += 1
    return run
