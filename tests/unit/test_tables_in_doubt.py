"""Texts that look like tables of several kinds, or of none: read right, or refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import recorded
from kit.values import texts_in

from offload.errors import ConfigError
from offload.reading.tables import schema_line
from offload.reading.tables._forms import HEAD_CHARS
from offload.reading.tables._query import QueryResult, Record, query


def run(text: str, sql: str = "select * from t", *, size: int = 1000) -> QueryResult:
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    return query([Record(object(), len(text), chunks)], sql, 10**6)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run(text)
    assert schema_line(text) == ""
    return str(caught.value)


_CELLS = [
    ("CONTAINER ID", "IMAGE", "CREATED", "STATUS", "PORTS", "NAMES"),
    ("0123456789ab", "nginx:latest", "2 hours ago", "Up 2 hours", "0.0.0.0:80->80/tcp", "web"),
    ("abcdefabcdef", "redis:7", "3 days ago", "Up 3 days", "6379/tcp", "cache"),
    ("0023456789ab", "nginx:latest", "2 hours ago", "Exited (0) 3 minutes ago", "", "web2"),
]
DOCKER = "".join("{:15}{:15}{:14}{:27}{:21}{}\n".format(*row) for row in _CELLS)
GRID = """\
+----+------+
| id | name |
+====+======+
| 1  | a    |
|    | more |
+----+------+
| 2  | b    |
+----+------+
"""
BOX = (
    "+----+------+\n| id | name |\n+----+------+\n" + "| 1  | a    |\n|    | more |\n" * 5 + "+----+------+\n"
)
_PODS = [(f"pod-{n * n}", "Running" if n % 7 else "Error", f"{n}d") for n in range(200)]
READ: dict[str, tuple[str, tuple[str, ...], list[tuple[Any, ...]]]] = {
    "docker ps": (DOCKER, _CELLS[0], _CELLS[1:]),
    "an aligned table whose cells grow": (
        "".join("{:<12}{:<10}{}\n".format(*row) for row in [("NAME", "STATUS", "AGE"), *_PODS]),
        ("NAME", "STATUS", "AGE", "AGE_text"),
        [(name, status, 86400.0 * int(age[:-1]), age) for name, status, age in _PODS],
    ),
    "a table that a line about it follows": (
        "        ID NAME\n---------- ---------\n         1 a b\n        20 c\n\n2 rows selected.\n",
        ("ID", "NAME"),
        [(1, "a b"), (20, "c")],
    ),
    "a box with a title": (
        "+--------+\n| Vol    |\n+---+----+\n| a | n  |\n+---+----+\n| x | 10 |\n| y | 8  |\n+---+----+\n",
        ("a", "n"),
        [("x", 10), ("y", 8)],
    ),
    "an aligned table with thousands": (
        "NAME      SIZE      COUNT\na        1,000     2,000\nb        3,400     5,600\n",
        ("NAME", "SIZE", "COUNT", "SIZE_text", "COUNT_text"),
        [("a", 1000, 2000, "1,000", "2,000"), ("b", 3400, 5600, "3,400", "5,600")],
    ),
    "a CSV whose last cells have semicolons": (
        "id,name,tags\n1,x,a;b\n2,y,c;d\n3,z,e;f\n",
        ("id", "name", "tags"),
        [(1, "x", "a;b"), (2, "y", "c;d"), (3, "z", "e;f")],
    ),
    "names that begin with digits": (
        "1st,2nd,n\n1,2,a\n3,4,b\n",
        ("1st", "2nd", "n"),
        [(1, 2, "a"), (3, 4, "b")],
    ),
    "years as names": (
        "country,2023,2024\nFrance,1.5,2.5\nSpain,3.5,4.5\n",
        ("country", "2023", "2024"),
        [("France", 1.5, 2.5), ("Spain", 3.5, 4.5)],
    ),
    "names beyond ASCII": ("été,âge\n1,2\n3,4\n", ("été", "âge"), [(1, 2), (3, 4)]),
    "aligned names beyond ASCII": (
        "Größe   Name\n100     a\n20      b\n",
        ("Größe", "Name"),
        [(100, "a"), (20, "b")],
    ),
    "NULL in the first column of psql": (
        " id | name | v \n----+------+---\n  1 | foo | 1\n    | bar | 2\n(2 rows)\n",
        ("id", "name", "v"),
        [(1, "foo", 1), (None, "bar", 2)],
    ),
    "NULL in psql with two columns": (
        " id | name \n----+------\n  1 | foo\n    | bar\n    | \n  4 | d\n(4 rows)\n",
        ("id", "name"),
        [(1, "foo"), (None, "bar"), (None, ""), (4, "d")],
    ),
    "cells of psql over several lines": (
        " id | name  \n----+-------\n  1 | one  +\n    | two\n  2 | C++\n(2 rows)\n",
        ("id", "name"),
        [(1, "one\ntwo"), (2, "C++")],
    ),
    "a row of dashes": (
        "| a | b |\n|---|---|\n| x | y |\n| -- | -- |\n",
        ("a", "b"),
        [("x", "y"), ("--", "--")],
    ),
    "a map whose members have a key": (
        json.dumps({"a": {"key": "x", "v": 1}, "b": {"key": "y", "v": 2}}),
        ("key", "key_2", "v"),
        [("a", "x", 1), ("b", "y", 2)],
    ),
    "cells that are padded between tabs": (
        "NAME\tREV\tSTATUS  \nweb \t3  \tdeployed\ndb  \t12 \tfailed  \n",
        ("NAME", "REV", "STATUS"),
        [("web", 3, "deployed"), ("db", 12, "failed")],
    ),
    "the members of an object that are not alike": (
        json.dumps({"name": "x", "version": "1.0", "scripts": {"a": "b"}}, indent=1),
        ("key", "value"),
        [("name", "x"), ("version", "1.0"), ("scripts", '{"a":"b"}')],
    ),
    "a first row with values of more columns than not": (
        "done\t5\t1m2s\t2026-11-05\ndone\t6\t2m\t2026-11-04\nleft\t7\t10s\t2026-11-03\n",
        ("column1", "column2", "column3", "column4", "column3_text"),
        [
            ("done", 5, 62, "2026-11-05", "1m2s"),
            ("done", 6, 120, "2026-11-04", "2m"),
            ("left", 7, 10, "2026-11-03", "10s"),
        ],
    ),
    "sizes whose first one has another unit": (
        "4.0K\t./a\n1.2M\t./b\n1.3M\t.\n",
        ("column1", "column2"),
        [("4.0K", "./a"), ("1.2M", "./b"), ("1.3M", ".")],
    ),
    "the directive of Excel": (
        "sep=;\r\nname;amount\r\na;1\r\nb;2\r\n",
        ("name", "amount"),
        [("a", 1), ("b", 2)],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_table_that_looks_like_another_is_read_as_what_it_is(name: str) -> None:
    text, columns, expected = READ[name]

    found = run(text)

    assert (found.columns, found.rows) == (columns, expected)


def test_quotes_in_tab_separated_text_swallow_no_rows() -> None:
    subjects = ["Add", '"Begin', "Fix", 'Say "no"', '"All"', 'End"']
    text = "".join(f"{n:07x}\t2026-01-0{n + 1}\t{subjects[n % 6]}\n" for n in range(6)) * 6

    found = run(text)

    assert len(found.rows) == 36
    assert [row[2] for row in found.rows[:4]] == subjects[:4]
    assert "lines with a quote that is read as text" in found.notes[0]


REFUSED = {
    "two delimiters": ("a,b;c,d\n1,2;3,4\n5,6;7,8\n", "can be read as CSV with semicolons and as CSV"),
    "many long rows": ("a,b\n" + "1,2\n" * 40 + "1,2,3\n" * 9, "9 of its first 50 lines do not fit"),
    "late long rows": ("a,b\n" + "1,2\n" * 70 + "1,2,3\n" * 19, "19 of its lines do not fit"),
    "another table at its end": (
        "a,b\n" + "1,2\n" * 30_000 + "x;y;z\n" * 30_000,
        "begins as CSV, but lines in its middle or at its end do not fit",
    ),
    "code": ("x=1; y=2\nx=3; y=4\nx=5; y=6\n", "its text is not a table"),
    "a key that comes twice in pairs": ("tag=a tag=b n=1\ntag=c tag=d n=2\n", "its text is not a table"),
    "a key that comes twice in JSON": ('[{"a": 1}, {"a": 1, "b": 2, "a": 3}]', "has the key 'a' twice"),
    "a key that comes twice in a value": ('{"rows": [{"a": {"b": 2, "b": 3}}]}', "has the key 'b' twice"),
    "a key that comes twice in each line": ('{"a": 1, "a": 2}\n' * 3, "has the key 'a' twice"),
    "times below names": (
        "                     open  close\n" + "2024-01-01 00:00:00   1.0    2.0\n" * 3,
        "its text is not a table",
    ),
    "types below the names of a box": (
        "┌─────┬──────┐\n│ id  │ name │\n│ int │ text │\n├─────┼──────┤\n│  1  │ a    │\n└─────┴──────┘\n",
        "its text is not a table",
    ),
    "names that are parted": (
        "+-----------+---+\n| GPU  Name | T |\n+-----------+---+\n| 0    T4   | 3 |\n+-----------+---+\n",
        "its text is not a table",
    ),
    "a word behind an aligned table": (
        "NAME   READY   STATUS\nweb    1/1     Running\ndb     1/1     Running\nDone\nError\nExit\n",
        "its text is not a table",
    ),
    "two names above two words each": (
        "UNIT    LOAD   ACTIVE SUB\na.path  ok     active on\nb.path  ok     failed off\n",
        "its text is not a table",
    ),
    "a mark before a row": (
        "  UNIT    STATE   NOTE\n  a.path  active  x y\n* b.path  failed  y z\n",
        "its text is not a table",
    ),
    "names below which cells are parted": (
        "PORT     STATE SERVICE\n22/tcp   open  ssh\n80/tcp   open  http\n443/tcp  shut  https\n",
        "its text is not a table",
    ),
    "columns of two names": (
        "Proto Recv-Q Local Address  State\ntcp        0 0.0.0.0:22     LISTEN\nudp        0 0.0.0.0:68\n",
        "its text is not a table",
    ),
    "wrapped cells of a box": (BOX, "rows that may continue the one before: 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_doubtful_table_is_none_and_the_error_says_why(name: str) -> None:
    text, reason = REFUSED[name]

    assert reason in refusal(text)


def test_a_first_line_that_may_be_a_row_is_said_and_names_nothing_in_a_placeholder() -> None:
    text = "alice,paris\nbob,rome\ncarol,oslo\n"

    assert (
        "the first line is taken as the names of the columns, but may be a row: alice, paris"
        in run(text).notes[0]
    )
    assert schema_line(text) == ""


@pytest.mark.parametrize(
    ("text", "count", "said"),
    [
        ('["id","n"]\n[1,"a"]\n[2,"b"]\n', 3, "the first array is a row here, but may have the names"),
        (
            '{"columns": ["id", "n"], "data": [[1, "a"], [2, "b"]]}',
            2,
            "t is /data; other arrays, with their sizes, are /columns (2)",
        ),
        ("#chrom\tpos\nc1\t10\nc2\t20\nc3\t30\n", 3, "comment lines before the table: 1, first at line 1"),
        (GRID, 3, "rows that may continue the one before: 1, first at line 5"),
        (GRID.replace("|    |", "| x  |"), 3, "rows before a line, which may be one row: 1, first at line 7"),
    ],
)
def test_names_and_rows_that_are_not_surely_those_are_said(text: str, count: int, said: str) -> None:
    found = run(text, "select count(*) from t")

    assert found.rows == [(count,)]
    assert said in " ".join(found.notes)


def test_extra_and_missing_cells_of_a_drawn_table_are_counted() -> None:
    text = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 30 + "| 1 | 2 | 3 |\n"

    assert run(text).notes == ["t: rows with more cells than columns, cut: 1, first at line 33"]


def test_the_answer_says_which_of_several_tables_it_read() -> None:
    document = json.dumps({"few": [{"a": 1}], "many": [{"b": 1}, {"b": 2}], "numbers": [1, 2, 3]})
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\ntext\n\n| c | d |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n"

    assert run(document).notes == [
        "t: t is /many; other arrays, with their sizes, are /few (1), /numbers (3)"
    ]
    assert "t: t is the longest of 2 tables, its names at line 7" in run(text).notes


def test_a_table_is_chosen_by_parts_of_a_long_text_and_not_by_its_beginning_alone() -> None:
    beginning = "id,name\n" + "1,x\n" * (HEAD_CHARS // 4)

    assert schema_line(beginning + "2,y\n" * 20_000) != ""
    assert schema_line(beginning + "and then prose, of a kind, with commas\n" * 5000) == ""


@pytest.mark.parametrize("line", ["", " ", "|", "{", "[", "\t", "-", "=", ",", "a", "#", '"', "+--+"])
def test_runs_of_any_line_have_no_schema_and_raise_nothing(line: str) -> None:
    for count in (1, 59, 60, 61, 2000):
        assert schema_line(f"{line}\n" * count) == ""
        assert "there is no t: " in refusal(f"{line}\n" * count)


_MOST_TABLES = 150


@recorded.needed
def test_no_recorded_result_that_is_prose_or_code_has_a_schema() -> None:
    texts = {text for path in recorded.FILES for text in texts_in(recorded.load(path)["messages"])}
    lines = {text: schema_line(text) for text in texts if len(text) > 300}
    shown = [(line, text) for text, line in lines.items() if line]

    assert len(shown) <= _MOST_TABLES
    for line, text in shown:
        is_json = text.lstrip(" \n0123456789\u2192")[:1] in ("{", "[")
        known = ("path text, ", "mode text, links", "time text, ", "level text, message")
        has_columns = any(names in line for names in known)
        assert is_json or has_columns or "|--" in text or text.startswith("PassengerId,"), (line, text[:300])


@pytest.mark.parametrize(("others", "is_table"), [(0, True), (1, True), (3, False), (10, False)])
def test_lines_of_pairs_are_a_table_if_nine_of_ten_are(others: int, is_table: bool) -> None:
    lines = [f"a={n} b=x" for n in range(20 - others)] + ["and a sentence"] * others

    if is_table:
        assert len(run("\n".join(lines)).rows) == 20 - others
        assert (run("\n".join(lines)).notes == []) == (others == 0)
    else:
        assert "its text is not a table" in refusal("\n".join(lines))


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 00:00:01] INFO worker {n} started\n",
        "[12:00:01.{n:03}] WARN worker {n} stopped\n",
    ],
)
def test_a_log_of_lines_in_brackets_is_the_same_table_at_every_length(line: str) -> None:
    short, long = ("".join(line.format(n=n % 999) for n in range(count)) for count in (50, 5000))

    assert len(short) < HEAD_CHARS < len(long)
    assert run(long).columns == run(short).columns
    assert [*run(long, "select count(*) from t").rows] == [(5000,)]


@pytest.mark.parametrize(
    "whole", ['[{"a": "%s"}, {"a": 1}]', '{"rows": [{"a": "%s"}, {"a": 1}]}', '[["%s", true], [1, 2]]']
)
@pytest.mark.parametrize("chars", [10, HEAD_CHARS - 12, HEAD_CHARS - 9, HEAD_CHARS, 2 * HEAD_CHARS])
def test_json_is_read_wherever_the_part_that_is_examined_ends(whole: str, chars: int) -> None:
    assert [*run(whole % ("x" * chars), "select count(*) from t").rows] == [(2,)]


def test_one_line_of_pairs_is_no_table() -> None:
    assert "its text is not a table" in refusal("a=1 b=2\n\n")
    assert "its text is not a table" in refusal("a=1 b=2\nand a sentence\n")
    assert run("a=1 b=2\na=3 b=4\n").rows == [(1, 2), (3, 4)]


PAGES = [{"total": 6, "runs": [{"id": 3 * page + n, "end": "good"} for n in range(3)]} for page in range(2)]
DOCUMENTS: dict[str, tuple[str, int, str]] = {
    "pages": ("".join(map(json.dumps, PAGES)), 6, "t has the members of /runs in each of 2 JSON documents"),
    "pages on lines": (
        "\n".join(map(json.dumps, PAGES)),
        6,
        "the members of /runs in each of 2 JSON documents",
    ),
    "indented objects": (
        "\n".join(json.dumps({"id": n, "tags": ["a"]}, indent=2) for n in range(9)),
        9,
        "t has one row for each of 9 JSON documents",
    ),
    "arrays": (json.dumps(PAGES[0]["runs"]) + json.dumps(PAGES[1]["runs"]), 6, "members of 2 JSON documents"),
    "arrays on lines": ("[[1, 2], [3, 4]]\n" * 2, 2, ""),
    "JSON lines with a key twice": (
        '{"a": 1}\n{"a": 2, "a": 3}\n{"a": 4}\n',
        2,
        "lines that are not JSON objects, or have a key twice: 1, first at line 2",
    ),
    "JSON lines between others": (
        "npm WARN x\n" + "".join(f'{{"id": {n}}}\n' * 2 + "(node) note\n" for n in range(4)),
        8,
        "lines that are not JSON objects, or have a key twice: 5, first at line 1",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("size", [7, 1000])
def test_all_json_documents_of_a_text_are_read_and_the_answer_says_so(name: str, size: int) -> None:
    text, count, said = DOCUMENTS[name]

    found = run(text, "select count(*) from t", size=size)

    assert found.rows == [(count,)]
    assert said in " ".join(found.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps(PAGES[0]) + '{"error": 1}', "1 of its 2 JSON documents have no /runs"),
        (
            json.dumps(PAGES[0]) + "\nretried\n" + json.dumps(PAGES[1], indent=1),
            "another text parts its JSON",
        ),
        (json.dumps(PAGES[0])[:-2] + json.dumps(PAGES[1], indent=1), "its text is not a table"),
    ],
)
def test_json_documents_that_differ_or_are_parted_are_not_read_in_part(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run(text)


def test_psql_cells_with_bars_are_cut_where_the_line_of_dashes_is() -> None:
    text = (
        " id |       run       | code \n----+-----------------+------\n"
        "  1 | set -e         +|    0 \n    | cat a | sort   +|      \n"
        "    |                +|      \n    | 終了            |      \n"
        "  2 | a | b | c       |    1 \n(3 rows)\n"
    )
    found = run(text)
    assert found.rows == [(1, "set -e\ncat a | sort\n\n終了", 0), (2, "a | b | c", 1)]
    assert found.notes == ["t: lines that say (3 rows): 1, first at line 8"]


def test_quotes_are_those_of_rfc_4180_where_that_reading_exists() -> None:
    text = "id,mail,user\n" + '0,"Hello,\n\n""you"", all",u\n' * 3 + '1,5" pipe,u\n2,"a" b,u\n3,"cut'
    found = run(text)
    assert found.rows == [*[(0, 'Hello,\n\n"you", all', "u")] * 3, (1, '5" pipe', "u"), (2, '"a" b', "u")]
    assert found.notes == [
        "t: lines with a quote that is read as text: 1, first at line 12",
        "t: rows cut at the end of the text: 1, first at line 13",
    ]
    with pytest.raises(ConfigError, match="quotes may be text, or hold line ends: line 3"):
        run('a\tb\n1\t2\n1\t"x\n2\ty"\n3\tz\n')


def test_columns_of_numbers_that_grow_to_the_left_are_read_and_a_moved_line_is_counted() -> None:
    lines = [f"root     {10 ** (n % 8):>7} {n:>4.1f} {n * 999:>6} /bin/x --n {n}" for n in range(200)]
    lines[150] = f"root     {7:>7} {1.5:>4} {123456789012} /bin/x --big"
    found = run(
        "\n".join(["USER         PID %CPU    RSS COMMAND", *lines, ""]),
        "select sum(pid), count(*), max(rss) from t",
    )
    assert found.rows == [(sum(10 ** (n % 8) for n in range(200)) - 10**6 + 7, 200, 123456789012)]


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("{time},123 - app.db - {level} - job", ("app.db", "ERROR", "job")),
        ("{time},123 [main] {level:<5} com.App - job", ("main", "ERROR", "com.App - job")),
        ("{time}.123 UTC [812] {level}:  job", (812, "ERROR", "job")),
        ("[{time}] production.{level}: job", ("production", "ERROR", "job")),
        ("{time} [myid:1] - {level} [main:X@12] - job", ("[myid:1]", "ERROR", "[main:X@12] - job")),
        ("{time} {level}: job", ("ERROR", "job")),
        ("[{time}] {level} -- : -job", ("ERROR", "-job")),
        ("{time} | {level:<8} | m:f:12 - job", ("ERROR", "m:f:12 - job")),
        ("{time} {level} db: job", ("ERROR", "db", "job")),
        ("{time} job done with an {level} page", ("job done with an ERROR page",)),
        ("{level}:root:job", ("ERROR", "root:job")),
    ],
)
def test_the_level_of_a_log_is_found_where_each_line_has_it_and_nowhere_else(
    form: str, row: tuple[Any, ...]
) -> None:
    levels = ["ERROR" if n % 40 == 7 or "an {" in form else "INFO" for n in range(99)]
    text = "".join(
        form.format(time=f"2026-09-02 10:00:{n % 60:02}", level=level) + "\n"
        for n, level in enumerate(levels)
    )
    found = run(text)
    assert found.rows[7][-len(row) :] == row
    assert len(found.columns) == len(row) + ("{time}" in form)
    assert ("level" in found.columns) == ("an {" not in form)
    assert found.notes == []


def test_what_lines_of_a_log_lack_is_counted_in_the_placeholder_and_in_answers() -> None:
    lines = [f"10:00:{n:02} {'error' if n % 9 else 'warn'}: step {n}" for n in range(59)]
    text = "\n".join([*lines, "10:01:00 restart", "and more"])
    counted = "lines without a level: 1, first at line 60"
    continued = "lines without a time, in the message before: 1, first at line 61"
    assert schema_line(text).endswith(f"message text; {counted}; {continued}]")
    assert run(text, "select level from t where 0").notes == [
        "t: level is error, warn",
        f"t: {counted}",
        f"t: {continued}",
    ]


def test_rows_behind_a_blank_line_or_other_names_are_not_taken_for_rows() -> None:
    rows = "".join(f"{n},x\n" for n in range(40))
    assert run(f"id,name\n{rows}\nid,total\n1,2\n").notes == [
        "t: lines behind a blank line, not read: 2, first at line 43"
    ]
    assert (
        run(f"id,name\n{rows}id,name\n1,y\n").notes[0]
        == "t: rows that may be names of columns: 1, first at line 42"
    )


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("item,price\na,10\nb,20\nTotal,30\n", "row 3 is named 'Total'"),
        ("| item | n |\n|---|---|\n| a | 1 |\n| **Grand total** | 1 |\n", "row 2 is named '**Grand total**'"),
        ("4.0K\t./a\n12K\t./b\n16K\ttotal\n", "row 3 is named 'total'"),
        ("item,price\nAll files,30\na,10\nb,20\n", "row 1 is named 'All files'"),
    ],
)
def test_a_row_that_is_the_total_of_the_others_is_named_in_each_answer(text: str, remark: str) -> None:
    assert run(text, "select sum(1) from t").notes[0].startswith(f"t: {remark}")


def test_a_row_with_a_word_like_total_in_its_name_is_a_row_like_the_others() -> None:
    assert run("item,price\na,10\nTotal Wine,20\ntotalled,30\n").notes == []
