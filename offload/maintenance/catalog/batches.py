"""The records and requests of a store, by its keys alone, as Arrow record batches: no contents, no titles.

Listings alone are read, one session at a time is in memory, and a batch has at most 50,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from offload.errors import OffloadError, needs_extra
from offload.maintenance.jobs.each import each_session, run_each
from offload.reading.timeline import Timeline
from offload.records.index.objects import SessionObjects
from offload.records.record import RecordInfo
from offload.storage.layout import JOURNAL, decode_part, generation_of, is_link
from offload.storage.store import OffloadStore, folders

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 50_000
_TIME = "time"
# The columns and their types, by the names of Arrow; "time" is in microseconds, UTC.
RECORDS = {
    "key": "string",
    "session": "string",
    "ref": "string",
    "generation": "int32",
    "item_type": "string",
    "tool": "string",
    "chars": "int64",
    "tokens": "int64",
    "stored_bytes": "int64",
    "is_shared": "bool_",
    "created_at": _TIME,
    "expires_at": _TIME,
    "deleted_at": _TIME,
    "deleted_because": "string",
    "changed_at": _TIME,
}
REQUESTS = {
    "session": "string",
    "number": "int64",
    "sent_at": _TIME,
    "model": "string",
    "messages": "int64",
    "tokens": "int64",
    "tokens_offloaded": "int64",
    "records": "int64",
    "read_backs": "int64",
    "is_compacted": "bool_",
    "input_tokens": "int64",
    "cache_read_tokens": "int64",
    "cache_written_tokens": "int64",
    "changed_at": _TIME,
}

CatalogRow = dict[str, Any]


def record_batches(
    store: OffloadStore,
    *,
    since: float = 0.0,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a store, one row for each key, also of deleted ones.

    Args:
        store: the store.
        since: only what was stored or deleted at this time or later, in seconds by the store's clock.
        executor: its workers list one session each; by default this thread lists the store.
        storage_options: for workers in other processes; see `offload.collect`.

    Raises:
        ConfigError: workers in other processes cannot open the store by its URL.
        MissingExtraError: the extra `arrow` is not installed.
        StoreError: the store failed, or a worker was lost.
    """
    rows = each_session(partial(_record_rows, since), store, executor, storage_options)
    return _batches(rows, RECORDS)


def request_batches(
    store: OffloadStore,
    *,
    since: float = 0.0,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the requests of all sessions with a journal; see `record_batches` for the arguments and errors.

    The usage of a request is known from the next one on, and a row is yielded again then.
    """
    parts = folders(store, JOURNAL.prefix())
    work = partial(_request_rows, since)
    rows = run_each(work, parts, [store], executor=executor, storage_options=[storage_options])
    return _batches(rows, REQUESTS)


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of `RECORDS` or `REQUESTS`. Raises `MissingExtraError`."""
    with needs_extra("arrow"):
        import pyarrow as pa  # noqa: PLC0415  # of an extra
    time = pa.timestamp("us", "UTC")
    return pa.schema(
        [(name, time if kind == _TIME else getattr(pa, kind)()) for name, kind in columns.items()]
    )


def _batches(
    sessions: Iterable[tuple[str, list[CatalogRow] | OffloadError]], columns: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    schema = schema_of(columns)
    import pyarrow as pa  # noqa: PLC0415  # of an extra

    rows = _rows(sessions)
    while batch := [*islice(rows, _BATCH_ROWS)]:
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def _rows(sessions: Iterable[tuple[str, list[CatalogRow] | OffloadError]]) -> Iterator[CatalogRow]:
    for _, rows in sessions:
        if isinstance(rows, OffloadError):
            raise rows
        yield from rows


def _record_rows(since: float, store: OffloadStore, objects: SessionObjects) -> list[CatalogRow]:  # noqa: ARG001  # each_session passes it
    rows = [_row(info) for info in (*objects.records, *objects.torn)]
    for record in objects.deleted:
        mark = record.last_tombstone
        # The time of an object that gc emptied is that of the deletion.
        created_at = _microseconds(record.info.created_at) if record.info.stored_bytes else None
        changed_at = max(record.info.created_at, *(tombstone.at for tombstone in record.tombstones))
        rows.append(
            _row(record.info)
            | {"created_at": created_at, "changed_at": _microseconds(changed_at)}
            | {"deleted_at": _microseconds(record.marked_at), "deleted_because": mark.reason}
        )
    return [row for row in rows if row["changed_at"] >= _microseconds(since)]


def _row(info: RecordInfo) -> CatalogRow:
    return {
        "key": info.key,
        "session": info.session,
        "ref": info.ref,
        "generation": generation_of(info.key),
        "item_type": info.item_type,
        "tool": info.tool_name,
        "chars": info.chars,
        "tokens": info.tokens,
        "stored_bytes": info.stored_bytes,
        "is_shared": is_link(info.key),
        "created_at": _microseconds(info.created_at),
        "expires_at": None if info.expires_at is None else _microseconds(info.expires_at),
        "changed_at": _microseconds(info.created_at),
    }


def _request_rows(since: float, store: OffloadStore, part: str) -> list[CatalogRow]:
    rows = []
    timeline = [*Timeline(store, decode_part(part))]
    for place, request in enumerate(timeline):
        usage = request.usage
        noted_at = timeline[place + 1].time if usage and place + 1 < len(timeline) else request.time
        if noted_at.timestamp() < since:
            continue
        rows.append(
            {
                "session": decode_part(part),
                "number": request.number,
                "sent_at": request.time,
                "model": request.model,
                "messages": request.messages,
                "tokens": request.tokens,
                "tokens_offloaded": request.tokens_offloaded,
                "records": request.records,
                "read_backs": request.read_backs,
                "is_compacted": request.is_compacted,
                "input_tokens": usage and usage.tokens,
                "cache_read_tokens": usage and usage.read,
                "cache_written_tokens": usage and usage.written,
                "changed_at": noted_at,
            }
        )
    return rows


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
