"""context_query: answers are right, bounded and say what they do not show; errors teach."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from answers import MAX_ANSWER, damage, put, session, tools_for

from offload import CorruptError, Offloader, OffloadPolicy, Rule, open_store
from offload.reading.tables import _query
from offload.reading.tables._database import Database
from offload.reading.tools import Tools
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

USERS = "id,name,note\n" + "".join(f"{n},user {n},{'' if n % 2 else 'x|y'}\n" for n in range(1, 501))
ORDERS = json.dumps({"orders": [{"user": n % 5 + 1, "total": n * 1.5, "left": None} for n in range(100)]})
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=100, preview_chars=300)}, min_saving=0)


def result(text: str, call: str = "c") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}]


def two() -> tuple[Tools, str, str]:
    into = session()
    return Tools(into), put(into, USERS, call="1"), put(into, ORDERS, call="2")


def test_an_answer_has_the_rows_between_bars_after_the_size_of_the_table() -> None:
    tools, ref = tools_for(USERS)

    answer = tools.query(ref, "select id, name, note, null n, 1.50 r, '' e, 'NULL' w from t where id < 3")

    assert answer == (
        f"[{ref}: 2 rows; t: 500 rows]\nid|name|note|n|r|e|w\n"
        '1|user 1|""|NULL|1.5|""|"NULL"\n2|user 2|"x|y"|NULL|1.5|""|"NULL"\n[end of rows]'
    )
    nothing = tools.query(ref, "select id from t where id > 999")
    assert nothing == f"[{ref}: 0 rows; t: 500 rows]\nid\n[end of rows]"


def test_colors_are_no_part_of_a_value_wherever_chunks_end() -> None:
    lines = (f"10:00:{n % 60:02} \x1b[31mERROR\x1b[0m db: \x1b[1mno row\x1b[0m {n}\n" for n in range(12_000))
    tools, ref = tools_for("".join(lines))

    answer = tools.query(
        ref, "select level, message, count(*) from t where message like 'no row 4%' group by 1"
    )
    assert answer.split("\n")[2] == "ERROR|no row 4|1111"
    answer = tools.query(ref, "select count(*) from lines where text like '%ERROR db: no row %'")
    assert answer.split("\n")[2] == "12000"
    tools, ref = tools_for('[{"a": "\\u001b[1mx"}, {"a": "y"}]')
    assert tools.query(ref, "select length(a) n from t").split("\n")[2:4] == ["5", "1"]


def test_several_items_are_joined_in_their_order() -> None:
    tools, users, orders = two()
    sql = "select t1.name, sum(t2.total) s from t1 join t2 on t2.user = t1.id group by 1 order by 2 limit 1"

    for arguments in (
        {"ids": [users, orders]},
        {"ids": f'["{users}", "{orders}"]'},
        {"ids": f"{users},{orders}"},
        {"id": f"{users}, {orders}"},
        {"id": f'["{users}", "{orders}"]'},
        {"id": f"{users.upper()},,{orders.upper()}"},
        {"id": [users, orders]},
    ):
        answer = tools.call("context_query", {**arguments, "sql": sql})
        assert answer.split("\n")[1:3] == ["name|s", "user 1|1425.0"]
    assert tools.query([users, orders], "select count(*) from lines1, lines2").split("\n")[2] == "501"
    unknown = tools.call("context_query", {"id": f"{users}, zzzzzzzzzz", "sql": sql})
    assert unknown.startswith("Error: unknown id 'zzzzzzzzzz'.")
    assert answer.startswith(f"[{users}, {orders}: 1 row; t1: 500 rows; t2: 100 rows]")


def test_an_answer_that_is_cut_says_how_many_rows_there_are_and_how_to_go_on() -> None:
    tools, ref = tools_for(USERS)
    seen: list[str] = []
    while len(seen) < 500:
        answer = tools.query(ref, f"select * from t limit 1000 offset {len(seen)}")  # noqa: S608 # numbers
        assert len(answer) <= MAX_ANSWER
        lines = answer.split("\n")
        assert lines[0] == f"[{ref}: {500 - len(seen)} rows; t: 500 rows]"
        seen += lines[2:-1]
        shown = re.fullmatch(r"\[(\d+) rows shown; add LIMIT 100 OFFSET \1, or filter\]", lines[-1])
        assert shown is not None or lines[-1] == "[end of rows]"
    assert [line.partition("|")[0] for line in seen] == [str(n) for n in range(1, 501)]


@pytest.mark.parametrize("most", [2000, 50_000])
def test_no_answer_is_longer_than_the_host_allows(most: int) -> None:
    into = session()
    ref = put(into, json.dumps([{f"{n}{'x' * 40}": "y" * n * 50 for n in range(60)}] * 9))
    tools = Tools(into, max_answer_chars=most)

    for sql in (
        "select * from t",
        "select * from lines",
        "select text, text from lines, json_each('[1,2,3]')",
    ):
        answer = tools.query(ref, sql)
        assert len(answer) <= most
        assert re.search(
            r"\n\[values cut at \d+ characters|\n\[a row does not fit; name fewer columns\]$", answer
        )


def test_a_long_value_is_cut_and_the_rest_can_be_read() -> None:
    text = "".join(f"{n % 10}" for n in range(3000))
    tools, ref = tools_for(json.dumps([{"a": text}] * 20))

    answer = tools.query(ref, "select a from t")

    assert f"{text[:300]}…" in answer
    assert "[values cut at 300 characters; use substr(column, 301)]" in answer
    assert text[300:700] in tools.query(ref, "select substr(a, 301, 400) from t limit 1")


@pytest.mark.parametrize("sql", ["select user.name from t", "select 1 from t where t.user.name = 'Ada 7'"])
def test_a_nested_value_named_with_dots_is_answered_with_the_function_that_reads_it(sql: str) -> None:
    tools, ref = tools_for(json.dumps([{"user": {"name": f"Ada {n}"}} for n in range(20)]))
    answer = tools.call("context_query", {"id": ref, "sql": sql})
    assert "user.name; for a value within it use json_extract(user, '$.name'); t has user" in answer
    assert "Ada 7" in tools.query(ref, "select json_extract(user, '$.name') from t")


ERRORS = {
    "select nme from t": "unknown column nme; t has id, name, note",
    "select * from t join users": "unknown table users; ",
    "select * from orders join users": "unknown table users; ",
    "select * from information_schema.tables": "unknown table information_schema.tables; ",
    "selec * from t": "syntax error near 'selec'; for example: SELECT id, COUNT(*) FROM t",
    "select id from t where (id = 1": "SQLite: incomplete input; for example: SELECT id",
    "": "sql must be one SELECT; for example: ",
    "-- nothing": "sql must be one SELECT; for example: ",
    "select 1; select 2": "sql must be one statement; remove what follows the first ;",
    "select * from t where id regexp 1": 'there is no REGEXP; use LIKE, or context_grep with mode="regex"',
    **dict.fromkeys(
        (
            *("delete from t", "insert into t values (1)", "update t set id = 1", "drop table t", "vacuum"),
            *("attach '/tmp/x' as x", "pragma table_info(t)", "create table x(a)", "begin", "analyze"),
            *(
                "vacuum into '/tmp/offload-query'",
                "create temp view v as select 1",
                "detach main",
                "alter table t add x",
            ),
            "with x as (select 1) delete from t",
        ),
        "only SELECT is allowed: items are read-only",
    ),
    "select * from sqlite_master": "sqlite_master cannot be read",
    "select load_extension('x')": "load_extension is not allowed",
}


@pytest.mark.parametrize("sql", ERRORS)
def test_a_wrong_statement_is_answered_with_what_would_be_right(sql: str) -> None:
    tools, ref = tools_for(USERS)

    assert tools.call("context_query", {"id": ref, "sql": sql}).startswith(f"Error: {ERRORS[sql]}")
    assert tools.query(ref, "select count(*) from t").split("\n")[2] == "500"


@pytest.mark.parametrize(
    ("sql", "n"),
    [
        *((f"select count(*) n from {name}", 500) for name in ("table", '"Data"', "[users]", "x.csv", "t1")),  # noqa: S608 # names
        ("select count(*) n from lines1", 501),
        ("select data.id n from data where name <> 'from data' and data.name = 'user 7' -- from data", 7),
        ("with x as (select * from users u join users) select count(*) n from x", 250_000),
    ],
)
def test_an_unknown_name_is_that_of_the_one_table_which_the_answer_says(sql: str, n: int) -> None:
    tools, ref = tools_for(USERS)
    answer = tools.query(ref, sql).split("\n")
    assert (answer[2], answer[3][:18]) == (str(n), "[there is no table")


def test_an_id_is_the_name_of_its_table() -> None:
    tools, users, orders = two()
    joined = tools.query([users, orders], f"select count(*) from {users} u join {orders} on user = u.id")  # noqa: S608 # ids
    assert joined.split("\n")[2:] == ["100", "[end of rows]"]
    assert tools.query(users, f"select count(*) from {users}").split("\n")[2:] == ["500", "[end of rows]"]  # noqa: S608 # an id
    assert tools.call("context_query", {"ids": [users, orders], "sql": "select 1 from data"}).startswith(
        "Error: unknown table data; t1 has id, name, note; t2 has user"
    )


def test_a_pragma_and_a_text_without_a_table_are_not_read_as_tables() -> None:
    tools, ref = tools_for(USERS)
    answer = tools.call("context_query", {"id": ref, "sql": "select * from pragma_table_info('t')"})
    # Some versions of SQLite ask for the right to declare the table first.
    refusals = ("pragma_table_info cannot be read", "only SELECT is allowed: items are read-only")
    assert answer.removeprefix("Error: ") in refusals

    tools, ref = tools_for("a sentence.\n" * 3)
    answer = tools.call("context_query", {"id": ref, "sql": "select * from t"})
    assert answer == "Error: there is no t: its text is not a table; use lines(n, text)"
    assert tools.query(ref, "select count(*) from lines").split("\n")[2] == "3"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sql": "select 1"}, "context_query needs id, or several with commas"),
        ({"sql": "select 1", "ids": []}, "context_query needs id"),
        ({"sql": "select 1", "id": "REF", "ids": ["REF"]}, "context_query needs id"),
        ({"id": "REF"}, "context_query: missing argument sql"),
        ({"sql": "select 1", "ids": ["REF"] * 9}, "at most 8 ids"),
        ({"sql": "select " + "1," * 9000 + "1", "id": "REF"}, "at most 8 ids, and 10,000 characters of sql"),
        ({"sql": "select 1", "ids": [1]}, "ids must be a list of strings"),
        ({"sql": "select 1", "ids": {"a": 1}}, "ids must be a list of strings, got dict"),
    ],
)
def test_a_wrong_call_is_answered_with_what_would_be_right(arguments: dict[str, Any], said: str) -> None:
    tools, ref = tools_for(USERS)
    text = json.dumps(arguments).replace("REF", ref)

    assert tools.call("context_query", text).startswith(f"Error: {said}")


def test_a_lone_surrogate_is_compared_as_the_tables_show_it() -> None:
    tools, ref = tools_for(json.dumps([{"name": "\ud800", "id": n} for n in range(9)]))
    for sql in ('{"sql": "select id from t where name = \'\\ud800\' limit 1"', '{"sql": "select \\ud800"'):
        answer = tools.call("context_query", f'{sql}, "id": "{ref}"}}')
        assert "\nid\n0\n" in answer or answer.startswith("Error: SQLite: unrecognized token"), answer


def test_a_damaged_record_is_an_error_and_never_other_rows() -> None:
    store = MemoryStore()
    ref = put(session(store), USERS * 50)
    damage(store)

    with pytest.raises(CorruptError):
        Tools(session(store)).query(ref, "select count(*) from t")


def test_a_record_is_loaded_once_for_the_queries_of_the_same_items(monkeypatch: pytest.MonkeyPatch) -> None:
    tools, users, orders = two()
    loads: list[str] = []

    def counted(name: str) -> None:
        load = getattr(Database, name)

        def wrapped(*args: Any) -> None:
            loads.append(name)
            load(*args)

        monkeypatch.setattr(Database, name, wrapped)

    counted("load_table")
    counted("load_lines")
    for _ in range(3):
        tools.query(users, "select count(*) from t")
        tools.query([users, orders], "select count(*) from t1, t2")
    tools.query(users, "select count(*) from t, lines")

    assert loads == ["load_table", "load_table", "load_table", "load_lines"]


def test_two_sessions_do_not_share_loaded_tables() -> None:
    one, two = tools_for(USERS), tools_for(USERS)

    assert one[1] == two[1]
    for tools, ref in (one, two):
        assert "500" in tools.query(ref, "select count(*) from t")
    keys = {key[0] for worker in _query.pool._workers for key in worker.kept if isinstance(key, tuple)}
    assert {one[0]._queries, two[0]._queries} <= keys


def test_threads_query_at_once() -> None:
    tools, users, orders = two()
    answers: list[str] = []

    def work() -> None:
        for n in range(9):
            answer = tools.query([users, orders], f"select {n}, count(*) from t1, t2")  # noqa: S608 # a number
            answers.append(answer.split("\n")[2])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == sorted(f"{n}|50000" for n in range(9) for _ in threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_queries_while_a_thread_of_its_parent_does() -> None:
    tools, ref = tools_for(USERS)
    tools.query(ref, "select count(*) from t")
    started = threading.Event()

    def long() -> None:
        started.set()
        tools.call("context_query", {"id": ref, "sql": "select count(*) from t a, t b, t c, t d"})

    thread = threading.Thread(target=long)
    thread.start()
    started.wait()
    child = os.fork()
    if child == 0:
        os._exit("500" not in tools.query(ref, "select count(*) from t"))
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


def test_what_is_redacted_is_in_no_table_and_the_answer_says_that_something_is() -> None:
    off = Offloader(
        MemoryStore(), session="s", policy=POLICY, redact=lambda text: text.replace("user 7,", "[gone],")
    )
    out = off.offload(result(USERS))
    ref = out.records[0].ref

    answer = off.tools.query(ref, "select count(*) from t where name = 'user 7'")

    assert answer.split("\n")[2:4] == [
        "0",
        "[Redacted: some content was removed before storage. Do not write this text back.]",
    ]
    assert "[gone]" in off.tools.query(ref, "select name from t where id = 7")


def test_a_query_compares_texts_in_one_normal_form_and_says_what_like_does_not_see() -> None:
    names = "".join(f"re\u0301sume\u0301-{n}.pdf,{n}\n" for n in range(50))
    tools, ref = tools_for("name,size\n" + names)
    for name in ("r\xe9sum\xe9", "re\u0301sume\u0301"):
        answer = tools.query(ref, f"select count(*) from t where name like '{name}%'")  # noqa: S608 # a name
        assert answer.split("\n")[2:4] == [
            "50",
            "[t: the text has accents as characters of their own, which are composed here]",
        ]
    tools, ref = tools_for("one\0needle\n" * 300)
    answer = tools.query(ref, "select count(*) from lines where text like '%needle%'")
    assert "[lines: the text has NULs, at which LIKE and most functions end a value]" in answer


def test_an_encrypted_record_is_queried_and_nothing_of_it_is_readable_on_disk(tmp_path: Path) -> None:
    store = EncryptingStore(open_store(str(tmp_path)), key=b"k" * 32)
    off = Offloader(store, session="s", policy=POLICY)
    ref = off.offload(result(USERS)).records[0].ref

    assert "500" in off.tools.query(ref, "select count(*) from t order by (select max(name) from t)")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"user 7" in path.read_bytes()]


@pytest.mark.parametrize("is_sink", [False, True])
def test_a_placeholder_names_the_columns_and_restores(is_sink: bool) -> None:  # a parameter
    off = Offloader(MemoryStore(), session="s", policy=POLICY)
    if is_sink:
        with off.open_sink(tool_use_id="c") as sink:
            for line in USERS.splitlines(keepends=True):
                sink.write(line)
        messages: list[Any] = result(str(sink.placeholder))
    else:
        messages = off.offload(result(USERS)).messages
    placeholder = messages[0]["content"][0]["content"]

    assert placeholder.split("\n")[1] == "[table: 500 rows; id integer, name text, note text]"
    assert off.restore(messages) == result(USERS)
    assert off.offload(messages).messages == messages
