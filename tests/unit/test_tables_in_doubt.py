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
READ: dict[str, tuple[str, tuple[str, ...], list[tuple[Any, ...]]]] = {
    "docker ps": (DOCKER, _CELLS[0], _CELLS[1:]),
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
    "names in the last comment": (
        "##format=1\n#chrom\tpos\tref\nc1\t10\tA\nc2\t20\tC\n",
        ("chrom", "pos", "ref"),
        [("c1", 10, "A"), ("c2", 20, "C")],
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
    "cells of a grid over several lines": (GRID, ("id", "name"), [(1, "a\nmore"), (2, "b")]),
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
    "an array on each line": ('["id","n"]\n[1,"a"]\n[2,"b"]\n', ("id", "n"), [(1, "a"), (2, "b")]),
    "a key that comes twice in pairs": (
        "tag=a tag=b n=1\ntag=c tag=d n=2\n",
        ("tag", "tag_2", "n"),
        [("a", "b", 1), ("c", "d", 2)],
    ),
    "HTML": (
        "<html><table><tr><th>id<th>n</tr><tr><td>1</td><td>a &amp; <b>b</b></td></tr><tr><td>2<td>c</table>",
        ("id", "n"),
        [(1, "a & b"), (2, "c")],
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
    "cells that go over several rows": (
        "<table><tr><th>a</th><th>b</th></tr>" + "<tr><td rowspan=2>1</td><td>2</td></tr>" * 3 + "</table>",
        "a cell that spans several columns or rows",
    ),
    "code": ("x=1; y=2\nx=3; y=4\nx=5; y=6\n", "its text is not a table"),
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


def test_extra_and_missing_cells_of_a_drawn_table_are_counted() -> None:
    text = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 30 + "| 1 | 2 | 3 |\n"

    assert run(text).notes == ["t: rows with more cells than columns, cut: 1, first at line 33"]


def test_the_answer_says_which_of_several_tables_it_read() -> None:
    document = json.dumps({"few": [{"a": 1}], "many": [{"b": 1}, {"b": 2}], "numbers": [1, 2, 3]})
    page = "<table><tr><td>1<td>2</tr></table>" + "<table>" + "<tr><td>1</td><td>2</td></tr>" * 3 + "</table>"
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\ntext\n\n| c | d |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n"

    assert run(document).notes == [
        "t: t is /many; other arrays, with their sizes, are /few (1), /numbers (3)"
    ]
    assert run(page).notes == ["t: t is table 2 of 2 in the HTML, the one with most rows"]
    assert "t: t is the longest of 2 tables, its names at line 7" in run(text).notes


def test_a_table_is_chosen_by_parts_of_a_long_text_and_not_by_its_beginning_alone() -> None:
    beginning = "id,name\n" + "1,x\n" * (HEAD_CHARS // 4)

    assert schema_line(beginning + "2,y\n" * 20_000) != ""
    assert schema_line(beginning + "and then prose, of a kind, with commas\n" * 5000) == ""


@pytest.mark.parametrize(
    "line", ["", " ", "|", "{", "[", "\t", "-", "=", ",", "a", "<table>", "#", '"', "+--+"]
)
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
        has_columns = "path text, " in line or "mode text, links" in line or "time text, level" in line
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
