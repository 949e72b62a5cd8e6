"""The catalog of a store in Parquet files, read by real engines: DuckDB and Polars."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offload import (
    CorruptError,
    MissingExtraError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Retention,
    Rule,
)
from offload.maintenance.retention import collect, delete
from offload.storage.store import OffloadStore
from offload_backends.memory import MemoryStore

duckdb = pytest.importorskip("duckdb", reason="needs DuckDB")
pa = pytest.importorskip("pyarrow", reason="needs offload[arrow]")
polars = pytest.importorskip("polars", reason="needs Polars")
pq = pytest.importorskip("pyarrow.parquet", reason="needs offload[arrow]")

from offload.cli.app import app  # noqa: E402  # as above
from offload.maintenance import catalog  # noqa: E402  # the packages above are checked first
from offload.maintenance.catalog import record_batches as catalog_batches  # noqa: E402  # as above

ROOT = Path(__file__).parents[2]


def messages(count: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"role": "user", "content": "Count."}]
    for n in range(count):
        call = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"command": "seq"}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"{n} a line of output\n" * 2000}
        made += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return made


@pytest.fixture
def store(tmp_path: Path) -> OffloadStore:
    """A store with two sessions: one of two requests and two records, one of a record that expires."""
    off = Offloader(tmp_path / "store", session="it's", journal=True)
    off.offload(messages(1), model="m1")
    off.report_usage(
        {"input_tokens": 300, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100}
    )
    off.offload(messages(2), model="m1")
    policy = OffloadPolicy(tools={"Web": Rule(min_tokens=1, ttl="7d")})
    Offloader(off.store, session="b", policy=policy).offload_text("page\n" * 5000, tool_name="Web")
    return off.store


def connected(target: OffloadStore) -> Any:
    connection = duckdb.connect()
    connection.execute(catalog.views(target))
    return connection


def rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
    return found


def test_the_rows_say_what_the_listings_say(store, tmp_path):
    target = Offloader(tmp_path / "cat's").store

    report = catalog.export_catalog(store, target, requests=True)

    assert (report.run, report.records, report.requests, len(report.files)) == (1, 3, 2, 2)
    connection = connected(target)
    listed = [
        (info.key, info.session, info.ref, info.tool_name, info.chars, info.tokens, info.stored_bytes)
        for name in ("b", "it's")
        for info in Offloader(store, session=name).records()
    ]
    asked = "SELECT key, session, ref, tool, chars, tokens, stored_bytes FROM records"
    assert sorted(rows(connection, asked)) == sorted(listed)
    asked = (
        "SELECT number, model, messages, read_backs, input_tokens, cache_read_tokens FROM requests ORDER BY 1"
    )
    assert rows(connection, asked) == [(1, "m1", 3, 0, 1000, 600), (2, "m1", 5, 0, None, None)]


def test_a_later_run_adds_what_changed_and_the_newest_row_counts(store, tmp_path):
    target = Offloader(tmp_path / "catalog").store
    catalog.export_catalog(store, target)
    [page] = Offloader(store, session="b").records()
    delete(store, "b", [page.ref])
    marked = catalog.export_catalog(store, target)
    collect(store, Retention(grace=0))
    Offloader(store, session="c").offload_text("new\n" * 5000, tool_name="Bash")

    again = catalog.export_catalog(store, target)

    assert (marked.run, again.run) == (2, 3)
    connection = connected(target)
    assert rows(connection, "SELECT count(*), count(DISTINCT key) FROM records") == [(4, 4)]
    first = min((tmp_path / "catalog/records").glob("*"), key=lambda path: path.stat().st_mtime_ns)
    [(created_at,)] = rows(connection, f"SELECT created_at FROM '{first}' WHERE session = 'b'")  # noqa: S608  # a path of this test
    gone = rows(
        connection, "SELECT stored_bytes, deleted_because, created_at FROM records WHERE tool = 'Web'"
    )
    assert gone == [(0, "deleted", created_at)]


def test_a_killed_run_and_two_at_once_do_no_harm(store, tmp_path):
    class Killed(MemoryStore):
        def put(self, key, data, *, overwrite=False):
            if key.startswith("runs/"):
                raise KeyboardInterrupt
            super().put(key, data, overwrite=overwrite)

    target = Killed()
    with pytest.raises(KeyboardInterrupt):
        catalog.export_catalog(store, target)
    assert [stored.key[:8] for stored in target.keys()] == ["records/"]

    folder = Offloader(tmp_path / "catalog").store
    with ThreadPoolExecutor(4) as pool:
        runs = {pool.submit(catalog.export_catalog, store, folder).result().run for _ in range(4)}
    assert runs == {1, 2, 3, 4}
    assert rows(connected(folder), "SELECT count(*) FROM records") == [(3,)]


def test_workers_export_what_one_process_exports(store):
    alone = polars.concat(map(polars.from_arrow, catalog_batches(store)))

    with ThreadPoolExecutor(3) as pool:
        many = polars.concat(map(polars.from_arrow, catalog_batches(store, executor=pool)))

    assert many.equals(alone)
    assert alone.group_by("tool").len().sort("tool").rows() == [("Bash", 2), ("Web", 1)]


def test_an_empty_store_has_a_table_without_rows(tmp_path):
    target = Offloader(tmp_path / "catalog").store

    report = catalog.export_catalog(MemoryStore(), target, requests=True)

    assert (report.records, report.requests, len(report.files)) == (0, 0, 2)
    assert rows(connected(target), "SELECT * FROM records") == []
    assert catalog.export_catalog(MemoryStore(), target, requests=True).files == []


def test_what_is_not_there_or_damaged_is_said(store, tmp_path):
    target = Offloader(tmp_path / "catalog").store
    with pytest.raises(NotFoundError, match="no catalog was exported"):
        catalog.views(target)

    target.put("runs/000000001.json", b"{")
    with pytest.raises(CorruptError, match="is not a manifest"):
        catalog.export_catalog(store, target)


def test_without_the_extra_the_error_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    with pytest.raises(MissingExtraError, match=r"offload\[arrow\]"):
        next(catalog_batches(store))


def test_each_question_of_the_page_is_answered(store, tmp_path):
    page = (ROOT / "docs/catalog.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    target = Offloader(tmp_path / "catalog").store
    catalog.export_catalog(store, target, requests=True)
    connection = connected(target)

    answers = [rows(connection, sql) for sql in block.split(";") if sql.strip()]

    assert len(answers) == 8
    assert [tool for tool, *_ in answers[0]] == ["Bash", "Web"]
    assert answers[3] == []
    assert answers[4] == [("b", 1)]
    assert answers[7] == [("it's", 0.6)]


def test_the_command_prints_the_files_and_the_views(store, tmp_path, capsys):
    app(["catalog", "export", str(tmp_path / "out"), "--store", store.url, "--json"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)
    assert (report["run"], report["records"], report["requests"]) == (1, 3, 0)
    assert all((tmp_path / "out" / file).is_file() for file in report["files"])

    app(["catalog", "views", str(tmp_path / "out")], standalone_mode=False)
    assert capsys.readouterr().out.startswith("CREATE OR REPLACE VIEW records AS")
