"""The process that runs SQL: limited by the system, kept between queries, never left behind."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from answers import tools_for

from offload.errors import ConfigError
from offload.reading.tables import _process, _query
from offload.reading.tables._database import Database
from offload.reading.tables._query import Record, query
from offload.reading.tables._worker import FUNCTIONS

SLOW = "with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c"
CSV = "id,name\n" + "".join(f"{n},user {n}\n" for n in range(500))
PROC = Path("/proc")
needs_proc = pytest.mark.skipif(not (PROC / "self/limits").exists(), reason="the system has no /proc")


def answer(sql: str, text: str = CSV, key: object = "one") -> list[tuple[object, ...]]:
    return query([Record(key, len(text), [text])], sql, 1000).rows


def pids() -> list[int]:
    return [worker.pid for worker in _query.pool._workers]


@pytest.fixture(autouse=True)
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pool: _process.Pool[Database] = _process.Pool()
    monkeypatch.setattr(_query, "pool", pool)
    yield
    pool.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in (PROC / str(pid) / "stat").read_text()
    except OSError:
        return False


def functions() -> list[str]:
    return sorted({row[0] for row in sqlite3.connect(":memory:").execute("pragma function_list")})


def is_refused(function: str) -> bool:
    """Return whether a function is refused, with any number of arguments."""
    said = set()
    for count in range(6):
        try:
            answer(f"select {function}({', '.join('1' * count)})")
        except ConfigError as error:
            said.add(str(error))
    return f"{function} is not allowed" in said


def test_a_function_of_sqlite_is_refused_unless_it_only_computes() -> None:
    calls = {name for name in functions() if name.isidentifier() and not name.startswith("current_")}

    assert {name for name in calls if is_refused(name)} == calls - FUNCTIONS
    assert not {"load_extension", "fts3_tokenizer", "sqlite_log", "changes", "edit", "readfile"} & FUNCTIONS


@needs_proc
def test_the_system_limits_the_memory_files_and_processes_of_a_query() -> None:
    answer("select 1")

    limits = (PROC / str(pids()[0]) / "limits").read_text()

    for name in ("core file size", "file size", "processes"):
        assert re.search(rf"^Max {name} +0 +0 ", limits, re.MULTILINE), limits
    found = re.search(r"^Max address space +(\d+) ", limits, re.MULTILINE)
    assert found is not None
    assert int(found[1]) < 2 * _process.HEAP_BYTES
    assert re.search(r"^Max cpu time +\d+ ", limits, re.MULTILINE)


@needs_proc
def test_a_query_process_knows_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    answer("select 1")

    assert b"secret" not in (PROC / str(pids()[0]) / "environ").read_bytes()


def test_one_process_answers_all_queries_that_come_one_after_another() -> None:
    for n in range(5):
        assert answer("select count(*) from t", key=n) == [(500,)]
        with pytest.raises(ConfigError):
            answer("select nope from t", key=n)
        if n == 0:
            first = pids()
    assert pids() == first


def test_a_process_that_was_killed_between_queries_is_replaced() -> None:
    answer("select 1 from t")
    [first] = pids()
    os.kill(first, signal.SIGKILL)
    until(lambda: not _query.pool._workers[0].is_alive)

    assert answer("select count(*) from t") == [(500,)]
    assert pids() != [first]


def test_a_process_that_is_killed_in_a_query_fails_that_query_alone() -> None:
    answer("select 1")
    [first] = pids()
    errors: list[str] = []

    def long() -> None:
        with pytest.raises(ConfigError) as caught:
            answer(SLOW)
        errors.append(str(caught.value))

    thread = threading.Thread(target=long)
    thread.start()
    until(lambda: _query.pool._leased)
    os.kill(first, signal.SIGKILL)
    thread.join()

    assert errors == [
        f"the query process ended with code -{int(signal.SIGKILL)}; the next query starts a new one"
    ]
    assert answer("select count(*) from t") == [(500,)]


def test_many_threads_share_a_few_processes() -> None:
    found: list[object] = []

    def work(number: int) -> None:
        found.extend(answer(f"select {number}, count(*) from t", key=number % 3) for _ in range(4))  # noqa: S608 # a number

    threads = [threading.Thread(target=work, args=[number]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found, key=str) == sorted([[(n, 500)] for n in range(12) for _ in range(4)], key=str)
    assert 1 <= len(pids()) <= _process._MOST_WORKERS


def test_a_query_beyond_those_at_once_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "_MOST_WORKERS", 1)
    monkeypatch.setattr(_process, "_WAIT_SECONDS", 0.0)
    with _query.pool.lease("other"), pytest.raises(ConfigError, match="1 queries are already running"):
        answer("select 1")
    assert answer("select 1") == [(1,)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_a_process_of_its_own_and_leaves_that_of_its_parent() -> None:
    answer("select 1")
    before = pids()
    child = os.fork()
    if child == 0:
        is_right = not pids() and answer("select count(*) from t") == [(500,)] and pids() != before
        _query.pool.close()
        os._exit(not is_right)

    assert os.waitpid(child, 0)[1] == 0
    assert answer("select count(*) from t") == [(500,)]
    assert pids() == before


@needs_proc
@pytest.mark.parametrize("way", ["it ends", "it is killed while a query runs"])
def test_no_process_is_left_when_its_parent_is_gone(way: str) -> None:
    program = f"""
import threading, sys
from offload.reading.tables import _query
ask = lambda sql: _query.query([_query.Record(1, 1, ["a"])], sql, 10)
ask("select 1")
print(_query.pool._workers[0].pid, flush=True)
if {way != "it ends"}:
    ask({SLOW!r})
"""
    parent = subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if way != "it ends":
        parent.kill()
    _, errors = parent.communicate()

    until(lambda: not is_running(pid))
    assert errors == ""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", "queries run in a Python process, and '' is not a Python interpreter"),
        (
            "/usr/sbin/uwsgi",
            "queries run in a Python process, and '/usr/sbin/uwsgi' is not a Python interpreter",
        ),
        ("/no/such/python", "the query process could not be started: "),
    ],
)
def test_where_no_process_can_be_started_a_query_is_refused(
    monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    tools, ref = tools_for(CSV)

    said = tools.call("context_query", {"id": ref, "sql": "select 1 from t"})

    assert said.startswith(f"Error: {reason}")
    assert said.endswith("use context_grep or context_read")


def test_a_frozen_program_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)

    with pytest.raises(ConfigError, match="queries run in a Python process"):
        answer("select 1")


def test_an_interpreter_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    with pytest.raises(ConfigError, match=r"python ended with code 3; use context_grep"):
        answer("select 1")


def test_an_error_while_content_is_read_leaves_the_process_in_use() -> None:
    class Broken:
        def __iter__(self) -> Iterator[str]:
            yield CSV * 300
            raise ConfigError("damaged")

    answer("select 1")
    first = pids()
    with pytest.raises(ConfigError, match="damaged"):
        query([Record("broken", 1, Broken())], "select count(*) from lines", 10)

    assert answer("select count(*) from t") == [(500,)]
    assert pids() == first


LARGE = {
    "select /* x */ * from t limit 1": [(0, "name 0", "x0")],
    "select t.* from t where id = 7": [(7, "name 7", "x7")],
    "select * from (select * from t) where id = 7": [(7, "name 7", "x7")],
    "select max(na\tme) from t": None,
    "select count(*) from t natural join (select 'x7' as other)": [(1,)],
    "select count(*) from t join (select 'x7' as other) using (other)": [(1,)],
    "select count(*), max(t.rowid) from t": [(3000, 3000)],
    'select max("OTHER") from t': [("x999",)],
    "select count(*) from lines join t on n = id": [(2999,)],
    "select (select other from t b where b.id = a.id) from t a where a.id = 5": [("x5",)],
    "with t as (select 1 id) select id from t": [(1,)],
    "select count(*) from main.t": [(3000,)],
    "select count(late) from t": [(1,)],
}


@pytest.mark.parametrize("sql", LARGE)
def test_content_whose_tables_are_not_kept_is_answered_alike(
    monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setattr(_query, "WHOLE_BYTES", 1000)
    lines = [f'{{"id":{n},"name":"name {n}","other":"x{n}"}}\n' for n in range(3000)]
    if "late" in sql:
        lines[-1] = lines[-1].replace('"id"', '"late":1,"id"')
    expected = LARGE[sql]
    if expected is None:
        with pytest.raises(ConfigError):
            answer(sql, "".join(lines))
    else:
        assert answer(sql, "".join(lines)) == expected


def test_a_join_of_two_large_records_by_their_common_columns_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_query, "WHOLE_BYTES", 1000)
    one = "id,a,wide\n" + "".join(f"{n},{n % 3},x{n}\n" for n in range(900))
    two = "wide,b\n" + "".join(f"x{n * 2},{n}\n" for n in range(900))
    records = [Record(1, len(one), [one]), Record(2, len(two), [two])]

    assert query(records, "select count(*) from t1 natural join t2", 100).rows == [(450,)]
    assert query(records, "select * from t1 natural join t2 where b = 5", 100).rows == [(10, 1, "x10", 5)]
