"""Texts as tables: which texts are, with which columns and types, and what a placeholder says of them."""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import Any

import pytest

from offload.errors import ConfigError
from offload.reading.tables import schema_line
from offload.reading.tables._form import MAX_CELL_CHARS
from offload.reading.tables._query import QueryResult, Record, query
from offload.reading.tables._survey import quoted

PS = """\
USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
root           1  0.0  0.1 168000 11000 ?        Ss   10:00   0:01 /sbin/init splash
www          333  1.5  2.0 999999 22222 ?        S    10:00   0:00 nginx: worker process
root       44444  0.0  0.0      0     0 ?        S    10:00   0:00 [kthreadd]
"""
DF = """\
Filesystem      Size  Used Avail Use% Mounted on
udev            7.8G     0  7.8G   0% /dev
tmpfs           1.6G  2.1M  1.6G   1% /run
/dev/sda1       100G   50G   50G  50% /
"""
PIP = "Package    Version\n---------- -------\nanyio      4.9.0\ncertifi    2026.1\nidna       3.10\n"
PSQL = " id | name \n----+------\n  1 | foo\n  2 | bar\n(2 rows)\n"
MARKDOWN = "| id | name |\n|---|:---:|\n| 1 | foo |\n| 2 | a \\| b |\n"
LS = """\
total 12
-rw-r--r-- 1 root root   123 Nov 22 10:00 a b.txt
drwxr-xr-x 2 root root  4096 Nov 22 10:00 dir
-rw-r--r-- 1 ann  staff   7 Nov 22  2025 c.txt
"""
LOG = "".join(f"2026-11-22 01:00:{n:02} {'ERROR' if n % 3 == 0 else 'INFO'} db: step {n}\n" for n in range(9))
ACCESS = "".join(
    f'10.0.0.{n} - - [22/Nov/2026:01:00:0{n} +0000] "GET /a/{n} HTTP/1.1" 200 {n * 100} "-" "curl"\n'
    for n in range(9)
)
LOGFMT = "".join(f'time=2026-11-22T01:00:0{n}Z level=info msg="did \\"x\\" {n}" n={n}\n' for n in range(9))
GREP = "".join(f"src/a{n}.py:{n * 3}:  def f{n}(): pass\n" for n in range(1, 9))
ITEMS = [{"id": n, "name": f"n{n}", "ok": n % 2 == 0, "tags": ["a"], "share": n / 2} for n in range(9)]
SCHEMA = "id integer, name text, ok boolean, tags JSON, share real"


def run(text: str, sql: str = "select * from t", *, size: int = 7) -> QueryResult:
    """Query a text that arrives in chunks of `size` characters."""
    chunks = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return query([Record(object(), len(text), chunks)], sql, 10**6)


def rows(text: str, sql: str = "select * from t") -> list[tuple[Any, ...]]:
    return run(text, sql).rows


TABLES = {
    "CSV": ("id,name\n1,foo\n2,bar\n3,baz\n", "3 rows; id integer, name text", (1, "foo")),
    "JSON array": (json.dumps(ITEMS), f"9 rows; {SCHEMA}", (0, "n0", 1, '["a"]', 0.0)),
    "JSON lines": ("\n".join(map(json.dumps, ITEMS)), f"9 rows; {SCHEMA}", (0, "n0", 1, '["a"]', 0.0)),
    "psql": (PSQL, "2 rows; id integer, name text", (1, "foo")),
    "Markdown": (MARKDOWN, "2 rows; id integer, name text", (1, "foo")),
    "pip list": (PIP, "3 rows; Package text, Version text", ("anyio", "4.9.0")),
    "df": (
        DF,
        (
            "3 rows; Filesystem text, Size real (bytes), Used real (bytes), Avail real (bytes), "
            '"Use%" integer (%), "Mounted on" text; as written in Size_text, Used_text, Avail_text, '
            '"Use%_text"'
        ),
        ("udev", 7.8 * 2**30, 0.0, 7.8 * 2**30, 0, "/dev", "7.8G", "0", "7.8G", "0%"),
    ),
    "ls -l": (
        LS,
        '3 rows; mode text, links integer, owner text, "group" text, size integer, modified text, name text',
        ("-rw-r--r--", 1, "root", "root", 123, "Nov 22 10:00", "a b.txt"),
    ),
    "log": (
        LOG,
        "9 rows; time text, level text, source text, message text",
        ("2026-11-22 01:00:00", "ERROR", "db", "step 0"),
    ),
    "logfmt": (
        LOGFMT,
        "9 rows; time text, level text, msg text, n integer",
        ("2026-11-22T01:00:00Z", "info", 'did "x" 0', 0),
    ),
    "grep": (GREP, "8 rows; path text, line integer, text text", ("src/a1.py", 3, "  def f1(): pass")),
    "compiler output": (
        "".join(f"src/a.ts({n + 3},28): error TS2304: Cannot find '{n}'\n" for n in range(9)),
        "9 rows; path text, line integer, text text",
        ("src/a.ts", 3, "error TS2304: Cannot find '0'"),
    ),
    "numbered CSV": (
        "".join(f"{n:6}\t{line}\n" for n, line in enumerate(("id,name", "1,foo", "2,bar", "3,b"), 1)),
        "3 rows; id integer, name text",
        (1, "foo"),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_with_its_columns_and_types_and_its_placeholder_names_them(name: str) -> None:
    text, schema, first = TABLES[name]

    assert schema_line(text) == f"[table: {schema}]"
    assert rows(text)[0] == first


def test_ps_keeps_a_command_in_one_column_and_an_access_log_has_columns_of_its_requests() -> None:
    assert rows(PS, "select pid, command from t where rss > 20000") == [(333, "nginx: worker process")]
    sql = "select host, method, path, status, bytes from t where bytes > 700"
    assert rows(ACCESS, sql) == [("10.0.0.8", "GET", "/a/8", 200, 800)]


NO_TABLES = {
    "prose": "Hello, this is a text.\nIt has, well, commas.\nAnd more, so.\nBye, now.\n" * 4,
    "code": "def f(a, b):\n    return a\n\nclass X:\n    def y(self):\n        return [1, 2]\n" * 5,
    "a C file": "int a;\nint b;\nchar c;\nreturn d;\n" * 4,
    "a list in code": 'x = [\n    "a",\n    "b",\n    "c",\n    "d",\n]\n',
    "one JSON object": json.dumps({"path": "a.txt", "content": "line\n" * 50}, indent=1),
    "cells without names": "alice,paris,red\nbob,rome,blue\ncarol,oslo,green\ndan,bern,red\n",
    "an empty text": "",
    "blank lines": "\n" * 100,
    "a word": "x" * 1000,
    "a diff": "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n" * 4,
    "test results": "".join(f"tests/a/test_{n}.py::test_it PASSED\n" for n in range(9)),
    "addresses": "".join(f"https://example.com:80{n}/a/b.html\n" for n in range(10, 20)),
    "a stack trace": 'Traceback:\n  File "a.py", line 3, in f\n    g()\n' * 5,
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_a_text_that_is_no_table_has_no_schema(name: str) -> None:
    assert schema_line(NO_TABLES[name]) == ""


def test_lines_that_are_no_table_are_looked_at_a_few_times_each() -> None:
    text = "\n".join(f"building part {n} of the program" for n in range(300))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    assert schema_line(text) == ""
    sys.setprofile(count)
    try:
        schema_line(text)
    finally:
        sys.setprofile(None)

    # The first 200 lines are examined: for five readers, in one call of C for most.
    assert calls < 6 * 200


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2", "0", ""], "integer"),
        (["1", "9223372036854775807"], "integer"),
        (["1", "9223372036854775808"], "text"),
        (["19.90", "5.00", "-0.25"], "real"),
        (["1.5", "2", "0.25"], "real"),
        (["1.1", "1.10"], "text"),
        (["0.1", "0.30000000000000004"], "real"),
        *((["1", value], "text") for value in ("007", "1_000", "inf", "0x1", "\u0661", "1,5", "9" * 25)),
        (["", ""], "text"),
    ],
)
def test_a_column_is_a_number_only_if_every_value_is_one(values: list[str], kind: str) -> None:
    text = "name;v\n" + "".join(f"x{n};{value}\n" for n, value in enumerate(values * 2))

    assert schema_line(text).endswith(f"v {kind}]")
    assert [str(v) for (v,) in rows(text, "select v from t") if v not in (None, "")] == [
        str(float(v)) if kind == "real" else v for v in values * 2 if v
    ]


@pytest.mark.parametrize(
    ("values", "numbers", "kind"),
    [
        (["75e3", "1e7", "2"], [75e3, 1e7, 2], "real"),
        (["$1.50", "-$2.25", "$1,000.00"], [1.5, -2.25, 1000.0], "real ($)"),
        (["1,000", "180,299,000", "300"], [1000, 180_299_000, 300], "integer"),
        (["100 %", "5%", "0"], [100, 5, 0], "integer (%)"),
        (["1.5GiB", "200MiB", "1kB", "0B"], [1.5 * 2**30, 200 * 2**20, 1000, 0], "real (bytes)"),
        (["30ms", "1.5s", "2m", "1h30m", "0"], [0.03, 1.5, 120, 5400, 0], "real (seconds)"),
        (["12 km", "1.5 km"], [12, 1.5], "real (km)"),
        (["+1", "-0", " 3"], [1, 0, 3], "integer"),
        (["0.1", "0.3000000000000000012"], [0.1, 0.3], "real"),
        (["1", "N/A", "2", "-"], [1, None, 2, None], "integer (2 NULL)"),
    ],
)
def test_numbers_compare_as_numbers_in_every_form_and_are_beside_as_they_are_written(
    values: list[str], numbers: list[float], kind: str
) -> None:
    text = "name\tv\n" + "".join(f"x\t{value}\n" for value in values)

    assert schema_line(text) == f"[table: {len(values)} rows; name text, v {kind}; as written in v_text]"
    found = run(text, "select v, v_text from t")
    assert [row[1] for row in found.rows] == values
    assert [number for number, _ in found.rows] == pytest.approx(numbers)
    assert "v has numbers" in found.notes[0]
    known = [number for number in numbers if number is not None]  # type: ignore[redundant-expr] # some are
    most = [(pytest.approx(max(known)), len(known))]
    assert rows(text, "select max(v), count(*) from t where v > -1e9") == most


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("version", ["3.10", "3.9", "4.1"], "its values are versions"),
        ("python", ["3.10", "3.9", "3.11"], "its values may be versions, such as '3.10'"),
        ("price", ["9.5", "10.25", "100.00", "7.10"], "its values may be versions, such as '100.00'"),
        ("n", ["1", "18446744073709551615"], "18446744073709551615 would lose digits"),
        ("amount", ["(3.00)", "4.00", "5.00"], "1 of 3 values are not numbers, such as '(3.00)'"),
        ("zip", ["00123", "12345", "54321"], "'00123' would lose a zero"),
        ("n", ["1,5", "2,25", "3"], "the comma in '1,5' may be a decimal point"),
        ("stars", ["1.2k", "3M", "5"], "its units differ: , M, k"),
        ("cost", ["$1", "€2", "$3"], "its units differ: $, €"),
        ("v", ["1", "2", "x", "3"], "1 of 4 values are not numbers, such as 'x'"),
    ],
)
def test_a_column_of_doubtful_numbers_is_text_and_the_answer_says_why(
    name: str, values: list[str], reason: str
) -> None:
    text = f"key\t{name}\n" + "".join(f"{n}\t{value}\n" for n, value in enumerate(values))

    found = run(text, f"select {name} from t")  # noqa: S608 # a name

    assert [row[0] for row in found.rows] == values
    assert found.notes[0].startswith(f"t: {name} is text, since {reason}")
    assert run(text, "select key from t").notes == []


@pytest.mark.parametrize("table", [PIP, PS])
def test_an_aligned_table_is_found_after_two_lines_of_text_and_no_more(table: str) -> None:
    shown = schema_line(table)
    assert shown
    assert schema_line("Some text about it:\n" * 2 + table).startswith(
        f"{shown[:-1]}; lines that are not rows: 2,"
    )
    assert schema_line("Some text about it:\n" * 3 + table) == ""


def test_lines_of_pairs_that_share_no_key_are_not_a_table() -> None:
    assert schema_line("".join(f"a=1 b{n}=2\n" for n in range(30))).startswith("[table: 30 rows; a integer")
    assert schema_line("".join(f"a{n}=1 b{n}=2\n" for n in range(30))) == ""


def test_a_placeholder_counts_the_columns_that_it_does_not_name() -> None:
    text = ",".join(f"column_{n}" for n in range(60)) + "\n" + (",".join(map(str, range(60))) + "\n") * 4
    columns, _, rest = schema_line(text).rpartition(", and ")
    assert rest == f"{60 - columns.count('column_')} more]"


def test_a_name_in_quotes_that_no_column_has_is_named_and_no_quotes_within_a_text_are() -> None:
    text = "id,name\n1,a\n2,b\n3,c\n"
    assert run(text, 'select "nam" from t').notes == ['"nam" is not a column, so it is a text here']
    named = 'select "name" as "whole" from t where name <> \'"it""s"\' order by "whole"'
    assert run(text, named).notes == []


def test_a_decimal_comma_is_no_number_where_semicolons_separate_and_blanks_are_null() -> None:
    text = "key;v\n" + "x;1,234\n" * 3
    assert rows(text, "select v from t limit 1") == [("1,234",)]
    assert "may be decimal" in run(text).notes[0]
    assert rows("n\tv\n1\t \n2\t5\n3\t6\n", "select v, v_text from t") == [(None, " "), (5, "5"), (6, "6")]


def test_a_late_value_changes_the_type_of_its_column_and_loses_nothing() -> None:
    late = 5000
    text = "zip,n,m\n" + "".join(
        f"{'007' if n == late else n + 10},{n},{'n/a' if n == late else n}\n" for n in range(late + 10)
    )

    assert rows(text, "select zip, typeof(zip), typeof(n), m, m_text from t where n = 5000 or n = 3") == [
        ("13", "text", "integer", 3, "3"),
        ("007", "text", "integer", None, "n/a"),
    ]
    assert "zip is text, since '007' would lose a zero" in str(run(text, "select max(zip) from t").notes)
    assert "1 of 5,010 values are not numbers, so NULL" in str(run(text, "select sum(m) from t").notes)


def test_values_that_are_no_numbers_are_counted_in_the_answer() -> None:
    text = "id,qty,age\n" + "".join(
        f"{n},{'N/A' if n == 4 else n},{'7 (7m ago)' if n == 4 else n}\n" for n in range(19)
    )
    assert (
        schema_line(text)
        == "[table: 19 rows; id integer, qty integer (1 NULL), age text; as written in qty_text]"
    )

    found = run(text, "select sum(qty), min(qty_text) from t where qty > 3")

    assert found.rows == [(sum(range(5, 19)), "10")]
    why = "1 of 19 values are not numbers, so NULL, such as 'N/A'"
    assert found.notes == [f"t: qty has numbers, as written in qty_text; {why}"]
    assert run(text, "select sum(id) from t").notes == []
    for sql in ("select sum(age) from t", "select count(*) from t where age > 3"):
        with pytest.raises(
            ConfigError, match=r"age is text, since 1 of 19 values are not numbers, such as '7 \(7m ago\)'"
        ):
            run(text, sql)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1, "1,200", "x", 3, "5"], "1 of 5 values are not numbers, such as 'x'"),
        ([9, "10", "$1.50"], "its units differ: , $"),
        ([5, True], "some of its values are boolean"),
        ([2**64 - 1, 7], "18446744073709551615 would lose digits"),
        ([2**60 + 1, 0.5], "1152921504606846977 would lose digits"),
        ([1, ""], "1 of 2 values are not numbers, such as ''"),
    ],
)
def test_a_json_column_of_numbers_and_others_is_text_as_it_is_written(values: list[Any], why: str) -> None:
    text = json.dumps([{"v": value} for value in values])

    found = run(text, "select v from t")

    assert [row[0] for row in found.rows] == [v if isinstance(v, str) else json.dumps(v) for v in values]
    assert found.notes == [f"t: v is text, since {why}"]
    with pytest.raises(ConfigError, match="v is text"):
        run(text, "select sum(v) from t")


def test_columns_whose_names_differ_in_case_are_told_apart_in_each_answer() -> None:
    found = run(json.dumps([{"id": 1, "ID": 2}, {"id": 3, "ID": 4}]), "select id from t")
    assert (found.rows, found.notes) == ([(1,), (3,)], ["t: id is one of several columns 'id'"])


def test_an_empty_cell_of_a_text_column_is_an_empty_text_and_an_answer_about_null_says_so() -> None:
    text = "n,name\n" + "".join(f"{n},{'' if n % 2 else 'x'}\n" for n in range(8))
    for sql in ("select count(*) from t where name is null", "select count(name) from t"):
        assert run(text, sql).notes == ["t: name has 4 empty texts, which are not NULL"]
    assert run(text, "select count(*) from t where name = ''").notes == []
    text = "n,name\n" + "".join(f"{n},{'NULL' if n % 2 else 'x'}\n" for n in range(8))
    found = run(text, "select count(*) from t where name is null")
    assert found.notes == ["t: name has 4 texts such as 'NULL' or 'N/A', which are not NULL"]


@pytest.mark.parametrize(
    ("times", "is_ordered"),
    [
        (["2026-01-01T10:00:00Z", "2026-01-02T10:00:00Z"], True),
        (["2026-01-01", "2026-01-02"], True),
        (["10:00:00.5", "10:00:01.5"], True),
        (["Nov 22 10:00:00", "Dec  1 10:00:00"], False),
        (["22/Nov/2026:01:00:00 +0000", "23/Nov/2026:01:00:00 +0000"], False),
        (["2026-01-01T10:00:00+01:00", "2026-01-01T10:00:00+02:00"], False),
        (["2026-01-01 10:00:00 CET", "2026-07-01 10:00:00 CEST"], False),
        (["2026-01-01", "2026-01-02", "N/A"], False),
        (["11/22/2026", "12/01/2026"], False),
        (["01:00 PM", "12:00 PM"], False),
        (["9:05", "10:05"], False),
    ],
)
def test_times_whose_order_as_text_may_not_be_that_in_time_are_said_to_be_text(
    times: list[str], is_ordered: bool
) -> None:
    text = "k\tat\n" + "".join(f"a\t{time}\n" for time in times * 3)
    said = f"t: at is text, such as {times[0]!r}: it compares as text, not as time"
    assert run(text, "select max(at) from t").notes == [said] * (not is_ordered)


def test_the_table_of_an_object_is_its_largest_array_of_objects() -> None:
    document = {"total": 9, "few": ITEMS[:2], "page": {"a/b": {"items": ITEMS}}, "numbers": list(range(99))}
    text = json.dumps(document)

    assert schema_line(text) == f"[table /page/a~1b/items: 9 rows; {SCHEMA}]"
    assert rows(text, "select count(*), max(id) from t") == [(9, 8)]


def test_values_of_json_keep_their_types_and_nested_ones_are_json_text() -> None:
    text = json.dumps([{"a": {"b": [1, "é"]}, "n": 2**70, "x": "007"}, {"a": None, "n": 1, "x": "1"}])

    assert rows(text) == [('{"b":[1,"é"]}', str(2**70), "007"), (None, "1", "1")]
    assert rows(text, "select json_extract(a, '$.b[1]') from t where a is not null") == [("é",)]


def test_keys_that_come_late_are_columns_and_those_of_objects_are_cells() -> None:
    items = [{"id": n, **({"late": "x"} if n == 4444 else {})} for n in range(5000)]
    assert rows(json.dumps(items), "select id, late from t where late is not null") == [(4444, "x")]
    text = json.dumps({"packages": {f"p{n}": {"version": f"1.{n}"} for n in range(5)}})
    assert schema_line(text) == "[table /packages: 5 rows; key text, version text]"
    assert rows(text, "select * from t limit 1") == [("p0", "1.0")]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("a,a,A", ("a", "a_2", "A_3")),
        ("select,order,group", ("select", "order", "group")),
        ('"x ""y""","[b]",', ("x y", "b", "column3")),
        ("id,,n", ("id", "column2", "n")),
    ],
)
def test_names_of_columns_are_unique_plain_and_quoted_where_sql_needs_it(
    header: str, columns: tuple[str, ...]
) -> None:
    assert run(f"{header}\nx,y,z\nu,v,w\n").columns == columns


def test_the_schema_is_short_and_quotes_what_sql_would_not_take() -> None:
    schema = schema_line("order,unit price\n1,2\n3,4\n5,6\n")
    assert schema == '[table: 3 rows; "order" integer, "unit price" integer]'
    line = schema_line(json.dumps([{f"a_rather_long_name_{n}": n for n in range(500)}] * 3))
    assert len(line) < 360
    assert " more]" in line


def test_quoted_cells_may_have_commas_quotes_and_line_ends() -> None:
    text = 'id,note\n1,"a, ""b""\nc"\n2,d\n3,"e\r\nf"\n'

    assert rows(text) == [(1, 'a, "b"\nc'), (2, "d"), (3, "e\nf")] or rows(text)[2] == (3, "e\r\nf")


def test_ragged_rows_are_kept_and_remarked() -> None:
    text = "a,b,c\n" + "1,2,3\n" * 30 + "4,5\n6,7,8,9\n"

    found = run(text, "select * from t where a > 3")

    assert found.rows == [(4, 5, None), (6, 7, 8)]
    assert found.notes == [
        "t: short rows, filled with NULL: 1, first at line 32",
        "t: rows with more cells than columns, cut: 1, first at line 33",
    ]


def test_lines_that_are_no_rows_are_counted() -> None:
    text = "Exported 3 rows\n\nid,name\n1,foo\n2,bar\n3,baz\nexit status 0\n"

    found = run(text)

    assert (found.rows, found.notes) == (
        [(1, "foo"), (2, "bar"), (3, "baz")],
        ["t: lines that are not rows: 2, first at line 1"],
    )
    assert schema_line(text) == ""


def test_the_lines_of_a_stack_trace_belong_to_the_message_before_them() -> None:
    text = LOG + "Traceback (most recent call last):\n  File x\n"

    assert rows(text, "select message from t where message like '%Traceback%'") == [
        ("step 8\nTraceback (most recent call last):\n  File x",)
    ]


def test_any_text_has_its_lines_numbered_from_one() -> None:
    assert rows("a\r\n\n\u2028b", "select * from lines") == [(1, "a"), (2, ""), (3, "\u2028b")]
    assert rows("", "select count(*) from lines") == [(0,)]


def test_a_cell_that_is_too_long_is_cut_and_remarked() -> None:
    text = json.dumps([{"a": "x" * (MAX_CELL_CHARS + 5)}, {"a": "y"}])

    found = run(text, "select length(a) from t", size=0)

    assert found.rows == [(MAX_CELL_CHARS,), (1,)]
    assert "values cut to 50,000 characters" in found.notes[0]
    found = run("x" * 200_000 + "\nend", "select n, length(text) from lines", size=1000)
    assert found.rows == [(1, MAX_CELL_CHARS), (2, 3)]
    assert "lines cut to 50,000 characters: 1, first at line 1" in found.notes[0]


def test_the_schema_of_a_long_table_has_the_types_of_its_first_rows_and_no_count() -> None:
    text = "id,name\n" + "".join(f"{n},name {n}\n" for n in range(20_000))

    assert schema_line(text) == "[table: id integer, name text; types by its first rows]"
    assert schema_line(text[:3000], is_whole=False) == schema_line(text)


def test_what_a_schema_says_is_what_a_query_finds() -> None:
    for text, schema, _ in TABLES.values():
        found = run(text, "select * from t", size=0)
        assert schema.startswith(f"{found.total} rows; ")
        assert all(quoted(name) in schema for name in found.columns)


def test_sqlite_is_recent_enough_for_the_operators_of_json() -> None:
    text = json.dumps([{"a": {"b": 1}}, {"a": {"b": 2}}])

    if sqlite3.sqlite_version_info >= (3, 38):
        assert rows(text, "select a ->> '$.b' from t") == [(1,), (2,)]


@pytest.mark.parametrize(
    "sql",
    [
        "select n from t where name > 3",
        "select n from t where 3 <= name or name = 'x'",
        "select n from t where name between 1 and 2.5",
        "select n from t where n in (select n from t where name < 1e6)",
        "select sum(name) from t",
        "select name * 2 from t",
        "select n, name > 5 from t group by n",
        "select n, sum(name) from t group by n order by 2",
        "select a from (select distinct name a, n from t order by n limit 5) where a > 2",
        "with x as (select name a from t) select * from x where a > 7",
        "select n from t where name",
        "select n from t where not name and n > 1",
        "select case when name then 1 end from t",
        "select iif(n > 1 and name, 1, 0) from t",
        "select count(*) filter (where name) from t",
        "select round(name, 1) from t",
    ],
)
def test_a_text_is_not_compared_with_a_number(sql: str) -> None:
    text = "n,name\n" + "".join(f"{n},x{n}\n" for n in range(9))

    with pytest.raises(ConfigError, match=r"^t: name is text: compare it with a text in quotes, or CAST"):
        run(text, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select name from t where n > 3",
        "select max(name), count(*) from t where name > '3' order by name limit 5",
        "select length(name) + 1 from t",
        "select n + 1 from t where name like 'x%' and length(name) > 1",
        "select t.name from t join lines on t.n = lines.n where lines.n > 2",
        "select cast(substr(name, 2) as integer) + 1 from t",
        "select sum(name = 'x1'), sum(length(name)), sum(case when name = 'x1' then n end) from t",
        "select iif(name like 'x%' and n > 1, 1, 0) from t where name in ('x1', 'x2') or not n",
        "select n from t where exists (select 1 from lines where text like t.name || '%')",
        "select n, row_number() over (order by name), coalesce(name, '') || 'a' from t where n and n <> 3",
        "select name, count(*) c from t group by name having c > 0 and not c > 5 order by c desc, name",
        "select n, (select max(name) from t u where u.n < t.n) m from t where m <> '' or t.n = 0",
        "select name from t where n in (select n from t where name <> '') union select text from lines",
    ],
)
def test_texts_that_are_compared_with_texts_have_no_note(sql: str) -> None:
    text = "n,name\n" + "".join(f"{n},x{n}\n" for n in range(9))

    assert run(text, sql).notes == []


def test_a_cast_of_a_text_to_a_number_is_done_and_said_and_so_is_what_true_is() -> None:
    text = "n,name\n" + "".join(f"{n},{n}x{n}\n" for n in range(9))
    found = run(text, "select sum(cast(name as real)) from t where cast(name as integer) > 6")
    assert found.rows == [(15.0,)]
    assert found.notes[-1] == "t: name is text; a cast takes the number at its beginning, or 0"
    found = run(json.dumps(ITEMS), "select count(*) from t where ok = 'true'")
    assert found.notes == ["t: ok is 1 for true and 0 for false"]
