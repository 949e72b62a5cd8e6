"""Questions over tables: answered right in one call of `context_query`, against grep and paging.

Each data set is made here, with what a tool returns: command output, REST pages, logs, tables. A question has
its SQL and an answer that is computed from the data in Python, so parsing, types, bounds and the size of the
answer are measured, and no model. A question is right if each expected value is a cell of the answer, in its
order. The fixed strategy without SQL greps the question's literal with the most matches allowed and follows
cursors, or pages through the item; it may hold as many characters as the item has, up to 50 calls. It is
right if all lines with the literal were shown: a model would still have to count and sum them.
"""

# ruff: noqa: S608 # the statements are the subject

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any, NamedTuple

from _measure import Figure, require, run, size

from offload import Offloader, OffloadPolicy, Rule

_RIGHT, _ANSWER_CHARS, _MS = 0.95, 2048, 300
_LARGE_ROWS, _QUICK_LARGE_ROWS = 55_000, 6_000
_MOST_CALLS = 50
_SMALL_CHARS = 200_000
_REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south")
_LEVELS = ("INFO", "INFO", "INFO", "WARN", "ERROR")
_SERVICES = ("api", "auth", "billing", "search")

Row = dict[str, Any]


class DataSet(NamedTuple):
    """One item: its rows, its text, and the names of its columns in SQL by their role.

    Attributes:
        name: what it is.
        rows: the rows that the text has.
        text: the text.
        key, group, number, time: columns for look-ups, groups, sums and ranges; "" if it has none.
    """

    name: str
    rows: list[Row]
    text: str
    key: str
    group: str
    number: str = ""
    time: str = ""


class Question(NamedTuple):
    """A question: its kind, its data sets, its SQL, the expected values, and a literal to search for."""

    kind: str
    sets: tuple[DataSet, ...]
    sql: str
    expected: list[tuple[Any, ...]]
    literal: str

    @property
    def is_large(self) -> bool:
        """Whether its data sets are not small ones."""
        return any(len(each.text) >= _SMALL_CHARS for each in self.sets)


class Call(NamedTuple):
    """The answer to a question, the time it took, and whether it is right."""

    question: Question
    answer: str
    seconds: float
    is_right: bool


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    sets = _data_sets(_QUICK_LARGE_ROWS if is_quick else _LARGE_ROWS)
    questions = [question for each in sets for question in _questions(each)] + [*_joins(sets), *_nested(sets)]
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
    off = Offloader("memory://", session="queries", policy=policy)
    refs = {each.name: _store(off, each) for each in sets}
    require(len(questions) >= 200, f"only {len(questions)} questions")  # noqa: PLR2004 # the goal
    yield from _by_query(off, refs, questions)
    yield from _by_search(off, refs, questions)


def _store(off: Offloader, data: DataSet) -> str:
    placeholder = off.offload_text(data.text, tool_name="Make", tool_use_id=data.name)
    found = re.search(r" id (\w+)\]", placeholder)
    if found is None:
        raise RuntimeError(f"{data.name} was not offloaded")
    return found[1]


def _by_query(off: Offloader, refs: dict[str, str], questions: Sequence[Question]) -> Iterator[Figure]:
    calls = [_queried(off, refs, question) for question in questions]
    for call in [call for call in calls if not call.is_right][:5]:
        print(f"wrong: {call.question.sql}\n{call.answer[:400]}\nexpected: {call.question.expected[:3]}")
    right = sum(call.is_right for call in calls)
    chars = median(len(call.answer) for call in calls)
    yield Figure(
        f"answered right in one call of {_ANSWER_CHARS} characters",
        right / len(calls),
        "",
        at_least=_RIGHT,
        detail=f"{right} of {len(calls)} questions over {len(refs)} data sets, {chars:.0f} characters",
    )
    for kind, count in Counter(call.question.kind for call in calls).items():
        found = sum(call.is_right for call in calls if call.question.kind == kind)
        yield Figure(f"  {kind}", found / count, "", detail=f"of {count}")
    largest = size(max(len(data.text) for call in calls for data in call.question.sets))
    for name, is_large in ((f"up to {largest}", True), (f"less than {size(_SMALL_CHARS)}", False)):
        seconds = [call.seconds for call in calls if call.question.is_large == is_large]
        first = max(seconds) * 1000
        yield Figure(
            f"median time of a question over {name}",
            median(seconds) * 1000,
            "ms",
            at_most=_MS,
            detail=f"{len(seconds)} questions; at most {first:.0f} ms, with the load of an item",
        )


def _queried(off: Offloader, refs: dict[str, str], question: Question) -> Call:
    ids = [refs[each.name] for each in question.sets]
    arguments = {"id": ids[0]} if len(ids) == 1 else {"ids": ids}
    start = time.perf_counter()
    answer = off.tools.call("context_query", {**arguments, "sql": question.sql})
    seconds = time.perf_counter() - start
    is_right = len(answer) <= _ANSWER_CHARS and _is_right(answer, question.expected)
    return Call(question, answer, seconds, is_right)


def _by_search(off: Offloader, refs: dict[str, str], questions: Sequence[Question]) -> Iterator[Figure]:
    calls, chars, done = [], [], 0
    # The large items would be searched for minutes, and in vain.
    small = [question for question in questions if not question.is_large]
    for question in small:
        count, size, is_done = 0, 0, True
        for data in question.sets:
            one = _searched(off, refs[data.name], question.literal if len(question.sets) == 1 else "")
            count, size, is_done = count + one[0], size + one[1], is_done and one[2]
        calls.append(count)
        chars.append(size)
        done += is_done and size <= _ANSWER_CHARS
    detail = f"{len(small)} questions, in the mean {mean(calls):.1f} calls and {mean(chars):,.0f} characters"
    yield Figure(
        f"all lines shown by grep or pages in {_ANSWER_CHARS} characters",
        done / len(small),
        "",
        detail=detail,
    )


def _searched(off: Offloader, ref: str, literal: str) -> tuple[int, int, bool]:
    """Return calls and characters until all lines with a literal were shown, and whether they were."""
    calls, chars, cursor, offset = 0, 0, None, 0
    while calls < _MOST_CALLS:
        calls += 1
        if literal:
            answer = off.tools.call(
                "context_grep", {"id": ref, "pattern": literal, "max_matches": 100, "cursor": cursor}
            )
            more = re.search(r'cursor="([^"]+)"\]$', answer)
            cursor = more[1] if more else None
        else:
            answer = off.tools.call("context_read", {"id": ref, "offset": offset})
            more = re.search(r"offset=(\d+)\)\]$", answer)
            offset = int(more[1]) if more else 0
        chars += len(answer)
        if more is None:
            return calls, chars, True
    return calls, chars, False


def _is_right(answer: str, expected: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether the rows of an answer are the expected ones."""
    lines = [line for line in answer.split("\n") if not line.startswith("[")][1:]
    return len(lines) == len(expected) and all(
        len(cells := line.split("|")) == len(row) and all(map(_is_same, cells, row))
        for line, row in zip(lines, expected, strict=True)
    )


def _is_same(cell: str, value: Any) -> bool:
    if isinstance(value, float):
        return abs(float(cell) - value) <= 1e-6 * max(1.0, abs(value))
    return cell.strip('"') == ("NULL" if value is None else str(value))


def _questions(data: DataSet) -> Iterator[Question]:
    """Yield the questions over one data set, each with its answer."""

    def ask(kind: str, sql: str, expected: Sequence[tuple[Any, ...]], literal: str = "") -> Question:
        return Question(kind, (data,), sql, [*expected], literal)

    rows, key, group, number = data.rows, data.key, data.group, data.number
    k, g = _quoted(key), _quoted(group)
    counts = Counter(row[group] for row in rows)
    value = rows[len(rows) // 3][group]
    yield ask("count", "select count(*) from t", [(len(rows),)])
    yield ask("filter", f"select count(*) from t where {g} = '{value}'", [(counts[value],)], str(value))
    one = rows[2 * len(rows) // 3]
    yield ask("look-up", f"select {g} from t where {k} = '{one[key]}'", [(one[group],)], str(one[key]))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    yield ask("group", f"select {g}, count(*) from t group by 1 order by 2 desc, 1", ordered)
    yield ask(
        "distinct",
        f"select count(distinct {g}), count(distinct {k}) from t",
        [(len(counts), len({row[key] for row in rows}))],
    )
    first = min(row[key] for row in rows if row[group] == value)
    yield ask(
        "text",
        f"select min({k}) from t where {g} like '{value[:3]}%' and {g} = '{value}'",
        [(first,)],
        str(value),
    )
    if number:
        yield from _numbers(data, ask)
    if data.time:
        yield from _times(data, ask)


def _numbers(data: DataSet, ask: Callable[..., Question]) -> Iterator[Question]:
    rows, key, group, number = data.rows, data.key, data.group, data.number
    k, g, n = _quoted(key), _quoted(group), _quoted(number)
    value = rows[len(rows) // 3][group]
    sums: dict[Any, float] = defaultdict(float)
    for row in rows:
        sums[row[group]] += row[number]
    yield ask("sum", f"select sum({n}) from t", [(float(sum(sums.values())),)])
    best = sorted(rows, key=lambda row: (-row[number], row[key]))[:5]
    sql = f"select {k}, {n} from t order by {n} desc, {k} limit 5"
    yield ask("top-k", sql, [(row[key], float(row[number])) for row in best])
    top = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:3]
    yield ask("group sum", f"select {g}, sum({n}) s from t group by 1 order by 2 desc, 1 limit 3", top)
    middle = median(row[number] for row in rows)
    above = sum(row[number] > middle for row in rows)
    yield ask("range", f"select count(*) from t where {n} > {middle}", [(above,)])
    average = float(mean(row[number] for row in rows if row[group] == value))
    yield ask("average", f"select avg({n}) from t where {g} = '{value}'", [(average,)], str(value))
    both = sum(row[number] > middle and row[group] == value for row in rows)
    sql = f"select count(*) from t where {n} > {middle} and {g} = '{value}'"
    yield ask("two conditions", sql, [(both,)], str(value))


def _times(data: DataSet, ask: Callable[..., Question]) -> Iterator[Question]:
    column, times = _quoted(data.time), sorted(str(row[data.time]) for row in data.rows)
    start, end = times[len(times) // 4], times[3 * len(times) // 4]
    within = sum(start <= at < end for at in times)
    yield ask(
        "date range",
        f"select count(*) from t where {column} >= '{start}' and {column} < '{end}'",
        [(within,)],
    )
    yield ask("first and last", f"select min({column}), max({column}) from t", [(times[0], times[-1])])
    days = Counter(at[:10] for at in times)
    sql = f"select substr({column}, 1, 10), count(*) from t group by 1 order by 2 desc, 1 limit 3"
    yield ask("per day", sql, sorted(days.items(), key=lambda item: (-item[1], item[0]))[:3])


def _joins(sets: Sequence[DataSet]) -> Iterator[Question]:
    """Yield questions over two data sets that have groups in common."""
    for one, two in pairwise([each for each in sets if len(each.rows) <= 1000]):  # noqa: PLR2004 # small ones
        left, right = Counter(row[one.group] for row in one.rows), Counter(row[two.group] for row in two.rows)
        pairs = sum(left[value] * right[value] for value in left)
        sql = f"select count(*) from t1 join t2 on t1.{_quoted(one.group)} = t2.{_quoted(two.group)}"
        yield Question("join", (one, two), sql, [(pairs,)], "")
        missing = sum(row[one.group] not in right for row in one.rows)
        sql = (
            f"select count(*) from t1 where {_quoted(one.group)} not in (select {_quoted(two.group)} from t2)"
        )
        yield Question("anti-join", (one, two), sql, [(missing,)], "")


def _nested(sets: Sequence[DataSet]) -> Iterator[Question]:
    """Yield questions about values within the cells of a table."""
    for data in sets:
        if '"tags": {"a"' in data.text[:1000]:
            sql = "select sum(json_extract(tags, '$.a[1]')) from t"
            yield Question("nested", (data,), sql, [(2 * len(data.rows),)], "")
            sql = "select count(*) from t, json_each(t.tags, '$.a') where json_each.value = 1"
            yield Question("nested", (data,), sql, [(len(data.rows),)], "")


def _quoted(name: str) -> str:
    return f'"{name}"'


def _orders(count: int, seed: int) -> list[Row]:
    chance = random.Random(seed)  # noqa: S311 # data to measure with
    return [
        {
            "id": f"o-{seed}-{n}",
            "region": chance.choice(_REGIONS),
            "amount": round(chance.uniform(1, 900), 2),
            "quantity": chance.randrange(1, 40),
            "day": f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}",
            "note": f'said "{chance.choice(_SERVICES)}", twice' if n % 9 == 0 else chance.choice(_SERVICES),
        }
        for n in range(count)
    ]


def _logged(count: int, seed: int) -> list[Row]:
    chance = random.Random(seed)  # noqa: S311 # data to measure with
    return [
        {
            "time": f"2026-11-{20 + n * 5 // count:02} {n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}",
            "level": chance.choice(_LEVELS),
            "source": chance.choice(_SERVICES),
            "message": f"request {n} took {chance.randrange(900)} ms",
        }
        for n in range(count)
    ]


def _data_sets(large: int) -> list[DataSet]:
    return [*_documents(large), *_commands(), *_logs(large)]


def _documents(large: int) -> Iterator[DataSet]:
    roles = ("id", "region", "amount", "day")
    rows = _orders(400, 1)
    yield DataSet(
        "REST page",
        rows,
        json.dumps({"page": 1, "total": 400, "links": {"next": "?page=2"}, "items": rows}),
        *roles,
    )
    rows = _orders(300, 2)
    yield DataSet("JSON array, indented", rows, json.dumps(rows, indent=2), *roles)
    rows = _orders(500, 3)
    yield DataSet("JSON lines", rows, "\n".join(map(json.dumps, rows)), *roles)
    rows = _orders(500, 4)
    yield DataSet("CSV", rows, _separated(rows, ","), *roles)
    rows = _orders(500, 5)
    yield DataSet("TSV", rows, _separated(rows, "\t"), *roles)
    rows = _orders(200, 6)
    yield DataSet("semicolons", rows, _separated(rows, ";").replace("\n", "\r\n"), *roles)
    rows = [{name: row[name] for name in ("id", "region", "quantity", "day")} for row in _orders(150, 7)]
    body = "\n".join(f"| {' | '.join(map(str, row.values()))} |" for row in rows)
    yield DataSet(
        "Markdown",
        rows,
        f"| id | region | quantity | day |\n|---|---|---|---|\n{body}\n",
        "id",
        "region",
        "quantity",
        "day",
    )
    rows = _orders(large, 8)
    yield DataSet("CSV, large", rows, _separated([{**row, "pad": "x" * 110} for row in rows], ","), *roles)
    rows = _orders(large, 9)
    yield DataSet("JSON array, large", rows, json.dumps([{**row, "pad": "x" * 60} for row in rows]), *roles)
    nested = [{"id": row["id"], "region": row["region"], "amount": row["amount"]} for row in _orders(300, 10)]
    text = json.dumps({"data": {"result": [{**row, "tags": {"a": [1, 2]}} for row in nested]}, "errors": []})
    yield DataSet("GraphQL answer", nested, text, "id", "region", "amount")


def _commands() -> Iterator[DataSet]:
    chance = random.Random(11)  # noqa: S311 # data to measure with
    rows = [
        {
            "NAME": f"pod-{n}-{chance.randrange(10**6)}",
            "STATUS": chance.choice(("Running", "Pending", "Error")),
            "RESTARTS": n % 7,
        }
        for n in range(200)
    ]
    lines = [f"{r['NAME']:<22}{'1/1':<8}{r['STATUS']:<10}{r['RESTARTS']:<11}{n}d" for n, r in enumerate(rows)]
    header = f"{'NAME':<22}{'READY':<8}{'STATUS':<10}{'RESTARTS':<11}AGE"
    yield DataSet("kubectl get pods", rows, "\n".join([header, *lines]), "NAME", "STATUS", "RESTARTS")
    rows = [
        {"PID": n + 100, "USER": chance.choice(("root", "www", "ann")), "RSS": chance.randrange(10**6)}
        for n in range(200)
    ]
    lines = [
        f"{r['USER']:<9}{r['PID']:>7}  0.{n % 9} {r['RSS']:>8} ?  Ss  10:00 /bin/run --n {n}"
        for n, r in enumerate(rows)
    ]
    header = f"{'USER':<9}{'PID':>7} %CPU {'RSS':>8} TT STAT START COMMAND"
    yield DataSet("ps aux", rows, "\n".join([header, *lines]), "PID", "USER", "RSS")
    rows = [
        {"id": n, "plan": chance.choice(("free", "team")), "seats": chance.randrange(90)} for n in range(200)
    ]
    lines = [f" {r['id']:>4} | {r['plan']:<6} | {r['seats']:>5} " for r in rows]
    yield DataSet(
        "psql",
        rows,
        "\n".join(["   id | plan   | seats ", "------+--------+-------", *lines, "(200 rows)"]),
        "id",
        "plan",
        "seats",
    )
    rows = [
        {"path": f"src/{chance.choice(_SERVICES)}.py", "line": n * 3 + 1, "text": f"def call_{n}(x):"}
        for n in range(200)
    ]
    yield DataSet(
        "grep output",
        rows,
        "\n".join(f"{r['path']}:{r['line']}:{r['text']}" for r in rows),
        "text",
        "path",
        "line",
    )
    rows = [
        {"name": f"file {n}.txt", "owner": chance.choice(("root", "ann")), "size": chance.randrange(10**6)}
        for n in range(150)
    ]
    lines = [f"-rw-r--r--  1 {r['owner']:<5} staff {r['size']:>8} Nov 22 10:00 {r['name']}" for r in rows]
    yield DataSet("ls -l", rows, "\n".join(["total 1234", *lines]), "name", "owner", "size")


def _logs(large: int) -> Iterator[DataSet]:
    roles = ("message", "level", "", "time")
    for name, count, seed in (("log", 800, 12), ("log, large", large * 2, 13)):
        rows = _logged(count, seed)
        yield DataSet(
            name,
            rows,
            "\n".join(f"{r['time']} {r['level']:<5} {r['source']}: {r['message']}" for r in rows),
            *roles,
        )
    rows = _logged(500, 14)
    yield DataSet(
        "logfmt",
        rows,
        "\n".join(
            f'time="{r["time"]}" level={r["level"]} source={r["source"]} message="{r["message"]}"'
            for r in rows
        ),
        *roles,
    )
    rows = [
        {"path": f"/items/{n}", "status": ("200", "200", "404", "500")[n % 4], "bytes": n * 7 % 5000}
        for n in range(500)
    ]
    lines = [
        f'10.0.0.{n % 9} - - [22/Nov/2026:01:{n // 60:02}:{n % 60:02} +0000] "GET {r["path"]} HTTP/1.1" '
        f'{r["status"]} {r["bytes"]} "-" "curl/8"'
        for n, r in enumerate(rows)
    ]
    yield DataSet("access log", rows, "\n".join(lines), "path", "status", "bytes")


def _separated(rows: Sequence[Row], delimiter: str) -> str:
    def cell(value: Any) -> str:
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        escaped = text.replace('"', '""')
        return f'"{escaped}"' if delimiter in text or '"' in text else text

    return (
        "\n".join([delimiter.join(rows[0]), *(delimiter.join(map(cell, row.values())) for row in rows)])
        + "\n"
    )


if __name__ == "__main__":
    run(__doc__, figures)
