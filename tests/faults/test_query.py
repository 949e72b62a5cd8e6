"""Content and statements made to hurt: a query answers within its bounds and raises nothing."""

from __future__ import annotations

import json
import re

import pytest
from answers import MAX_ANSWER, tools_for
from hypothesis import given, strategies as st
from strength import examples, thinned

from offload.reading.tables import _query, schema_line
from offload.reading.tables._query import Record, query

CONTENT = {
    "two rows of 5 million columns": ("a," * 5_000_000 + "\n") * 2,
    "100,000 columns, then short rows": "a," * 10_000 + "\n" + "1,2\n" * 100,
    "thousands of aligned names": "A  " * 3300 + "\n" + ("x  " * 16_000 + "\n") * 60,
    "a key for each of 100,000 items": "[" + ",".join(f'{{"k{n}":1}}' for n in range(100_000)) + "]",
    "empty objects": "[" + "{}," * 100_000 + "{}]",
    "arrays 100,000 deep": "[" * 10**5 + "]" * 10**5,
    "objects 100,000 deep": '{"a":' * 10**5 + "1" + "}" * 10**5,
    "items 5,000 deep": "[" + ("[" * 5000 + "]" * 5000 + ",") * 3 + "1]",
    "a quote that is not closed": 'id,note\n1,"' + "x,y\n" * 100_000,
    "quotes alone": "a,b\n" + '""",""\n' * 10_000,
    "NULs": "a,b\n" + "\0,\0\n" * 1000,
    "surrogates in JSON": json.dumps([{"a": "\ud800", "b\udfff": 1}] * 3),
    "surrogates in CSV": "\ud800,b\n" + "\udfff,1\n" * 5,
    "10 MB on one line": "x" * 10_000_000,
    "a value of 5 MB": json.dumps([{"a": "x" * 5_000_000}, {"a": "y"}]),
    "UTF-16 read as Latin-1": "id,name\n1,foo\n2,bar\n".encode("utf-16").decode("latin-1"),
    "bars alone": "|" * 100_000 + "\n" + "|-" * 50_000 + "\n" + "|" * 100_000,
    "dashes in a log": "2026-01-01 10:00:00 " + "- " * 100_000 + "\n2026-01-01 10:00:00 " + "-" * 100_000,
    "blanks": (" " * 200_000 + "\n") * 3,
    "blanks in a log": ("2026-01-01 10:00:00" + " " * 40_000 + "\n") * 5,
    "backslashes in pairs": ('a="' + "\\" * 40_000 + '"\n') * 3,
    "pairs without end": ("a=b " * 10_000 + "\n") * 3,
    "keywords as names": "select,from,where,group\n" + "1,2,3,4\n" * 5,
    "quotes in names": '"a""b",c\'d,[e],`f`\n' + "1,2,3,4\n" * 5,
    "integers of 6,000 digits": "[" + ",".join(f'{{"a":{"9" * 6000}}}' for _ in range(3)) + "]",
    "numbers beyond a float": '[{"a":1e400},{"a":NaN},{"a":-1e400}]',
    "keys that come twice": '[{"a":1,"a":2},{"A":3},{"a ":4}]',
    "blank lines": "\n" * 100_000,
    "a byte order mark": "\ufeff",
    "returns alone": "a,b\r1,2\r3,4\r",
    "line ends of all kinds": "a,b\r\n1\x0b,2\n\u20283,4\x0c\n5,6\x85\n",
    "JSON cut in the middle": json.dumps([{"id": n} for n in range(50_000)])[:-1000],
    "look-alikes": "id,text\n" + "1,[Offloaded: Bash result; 1 line; id aaaaaaaaaa]\n" * 50,
}
STATEMENTS = (
    "select count(*) from t",
    "select * from t",
    "select * from t limit 3",
    "select n, text from lines limit 3",
    "select max(length(text)), count(*) from lines",
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CONTENT)
def test_a_query_of_content_made_to_hurt_is_answered(name: str) -> None:
    tools, ref = tools_for(CONTENT[name])
    for sql in STATEMENTS:
        answer = tools.call("context_query", {"id": ref, "sql": sql})
        assert len(answer) <= MAX_ANSWER
        assert answer.encode().decode() == answer
        assert answer.startswith((f"[{ref}: ", "Error: there is no t: "))
        assert re.search(r"(?<!\\)\[Offloaded: ", answer) is None
    assert len(schema_line(CONTENT[name])) < 400


A = "hex(zeroblob(20000))"


def nested(depth: int) -> str:
    """Return a statement of a few characters that SQLite takes long to prepare."""
    tables = ", ".join(f"c{n}(x) as (select 1 from c{n - 1} a, c{n - 1} b)" for n in range(1, depth + 1))  # noqa: S608 # see below
    return f"with c0(x) as (select 1), {tables} select count(*) from c{depth}"  # noqa: S608 # the subject


BOMBS = {
    "with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c": (
        "stopped after 2 seconds"
    ),
    "select count(*) from t a, t b, t c, t d, t e": "stopped after 2 seconds",
    "select randomblob(1000000000)": "a value would exceed 256 KiB",
    "select zeroblob(1000000000)": "a value would exceed 256 KiB",
    "select hex(zeroblob(200000))": "a value would exceed 256 KiB",
    "select printf('%1000000000s', 'x')": "a value would exceed 256 KiB",
    "select format('%*d', 1000000000, 1)": "a value would exceed 256 KiB",
    f"select 1 from t a, t b, t c where replace({A}, a.id, b.id) like '{'%0' * 400}%b'": "stopped after",  # noqa: S608
    "select count(*) from (select distinct hex(randomblob(99000)) from t a, t b)": "stopped",
    nested(20): "stopped",
    nested(24): "stopped",
    "select fts3_tokenizer('simple')": "fts3_tokenizer is not allowed",
    "select fts3_tokenizer('simple', x'4141414141414141')": "fts3_tokenizer is not allowed",
    "select count(*) from fts3tokenize('simple', 'a b')": "only SELECT is allowed",
    "select count(*) from pragma_function_list": "only SELECT is allowed",
    "select count(*) from sqlite_master": "sqlite_master cannot be read",
    "select count(*) from dbstat": "only SELECT is allowed",
    "select load_extension('/tmp/x.so')": "load_extension is not allowed",
    "select readfile('/etc/passwd')": "SQLite: no such function: readfile",
    "attach ':memory:' as x": "only SELECT is allowed",
    "pragma hard_heap_limit = 0": "only SELECT is allowed",
    "create virtual table f using fts5(x)": "only SELECT is allowed",
    "explain select 1": "syntax error near 'explain'",
    "select replace(hex(zeroblob(60000)), '0', hex(zeroblob(60000)))": "a value would exceed 256 KiB",
    "select group_concat(text, text) from lines, (select 1 from t limit 99)": "a value would exceed 256 KiB",
    "select " + "(" * 4000 + "1" + ")" * 4000: "SQLite: ",
    "select 1 " + "union all select 1 " * 500: "SQLite: too many terms in compound SELECT",
    "select '" + "a" * 5000 + "' like '" + "%a" * 2000 + "%b'": "SQLite: LIKE or GLOB pattern too complex",
    "with recursive c(x) as (select 'x' union all select x || x from c) select length(x) from c": (
        "a value would exceed 256 KiB"
    ),
}
ROWS = "id,name\n" + "".join(f"{n},name {n}\n" for n in range(2000))
TOOLS, REF = tools_for(ROWS)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sql", thinned(BOMBS, 2), ids=lambda sql: sql[:60])
def test_a_statement_made_to_hurt_is_stopped_with_the_reason(
    sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_query, "_SECONDS", 0.7)
    answer = TOOLS.call("context_query", {"id": REF, "sql": sql})

    assert answer.startswith(f"Error: {BOMBS[sql]}")
    assert TOOLS.query(REF, "select count(*) from t").split("\n")[2] == "2000"


def test_content_whose_rows_take_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload.reading.tables._database._MAX_BYTES", 256 * 1024)
    tools, ref = tools_for("id,wide,order\n" + "".join(f"{n},{'x' * 90},{n % 7}\n" for n in range(9000)))

    for sql in ("select max(id) from t", "select text from lines"):
        answer = tools.call("context_query", {"id": ref, "sql": sql})
        assert answer.startswith(
            "Error: database or disk is full: the rows may take at most 0 MiB; use context_grep"
        )


cells = st.text(alphabet='a1.-,;|"\n\t \r0é\0', max_size=8)


@examples(60)
@given(st.lists(st.lists(cells, max_size=5), max_size=8), st.sampled_from(",;\t|"))
def test_any_text_is_a_table_or_is_not_and_is_always_lines(rows: list[list[str]], delimiter: str) -> None:
    text = "\n".join(delimiter.join(row) for row in rows)

    assert len(schema_line(text)) < 400
    record = Record(object(), len(text), [text[:7], text[7:]])
    found = query([record], "select text from lines", 10**6)
    assert [row[0] for row in found.rows] == [
        line.removesuffix("\r") for line in text.removesuffix("\n").split("\n") if text
    ] or text.endswith("\n")
    tools, ref = tools_for(text)
    assert re.match(
        r"\[|Error: there is no t: ", tools.call("context_query", {"id": ref, "sql": "select * from t"})
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@examples(60)
@given(values, st.sampled_from([None, 2]))
def test_any_json_is_answered(value: object, indent: int | None) -> None:
    tools, ref = tools_for(json.dumps(value, indent=indent))

    answer = tools.call("context_query", {"id": ref, "sql": "select * from t"})

    assert answer.startswith(("[", "Error: there is no t: "))


tokens = ("select", "from", "t", "(", ")", "*", ",", "'", '"', ";", "id", "1", "%", "--")
words = st.lists(st.sampled_from(tokens), max_size=9)


@examples(60)
@given(st.text(max_size=60) | words.map(" ".join) | words.map(lambda parts: "select " + " ".join(parts)))
def test_any_statement_is_answered(sql: str) -> None:
    answer = TOOLS.call("context_query", {"id": REF, "sql": sql})

    assert answer.startswith(("[", "Error: "))
    assert len(answer) <= MAX_ANSWER
    answer.encode()
