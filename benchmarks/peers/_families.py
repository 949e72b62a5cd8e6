"""Families of tasks for a scripted agent: each is made from a seed, at any size, with its answer.

A case has `ops`, what the agent knows of its task; `outputs`, what each tool call returns; `answer`, which
the agent never sees. An op calls a tool, or reads one fact out of the results of earlier calls:

- `call`: call the next tool; `{0}` in its argument is fact 0.
- `one`: the text that `pattern` captures in result `of`, on the line that holds `key`.
- `rows`: a sum over the rows of the results `of` that have the value `where`; `pattern` captures the id, the
  value and the amount of a row; there are `rows` rows in all, as the user said; `sql` and `steps` ask for
  the sum.
- `diff`: the value of the one line that is in result `new` and not in result `old`.
- `leave`: the conversation goes on in a new process, `to` "process", or also where the store is found at
  another path, as a share on another machine is: "machine".
- `compact`: all messages but those of the last call are replaced by what the candidate leaves of them.
- `delegate`: another agent does the ops of `agents` number `number`; it is given what is shown of result 0.
- `say`: the answer from the facts, `{0}` is fact 0.

Families of `EDITING` have `files`, and as `edited` what is to be left of them:

- `read`: read the file `path` whole.
- `edit`: quote the place of `path` that begins with `key` and looks like `pattern`; its number is to be `to`.
- `call` with `formats`: the call runs a formatter on that file.

Calls, reads and edits have each a result, numbered from 0, and a place in `outputs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from peers._editing import Place, changed, edited, formatted, found, module

CHARS_PER_TOKEN = 3.6
_ROW_CHARS = 70
_MOST_FILE_CHARS = 36_000
_REGIONS = ("north", "south", "east", "west", "inland", "coast", "islands")
_WORDS = ("harbour", "lantern", "orchard", "granite", "meadow", "copper", "willow", "summit")

Case = dict[str, Any]
Row = tuple[int, str, str, int]
Make = Callable[[Random, int], Case]


def cases(family: str, tokens: int, seed: int) -> Case:
    """Return the case of a family, with about `tokens` tokens of tool output in all: the same for a seed."""
    return (FAMILIES | EDITING)[family](Random(f"{family} {tokens} {seed}"), int(tokens * CHARS_PER_TOKEN))  # noqa: S311 # no secret


def write(folder: Path, family: str, tokens: int, seed: int) -> None:
    """Write the case of a family into a folder for `load`."""
    write_case(folder, family, tokens, seed, cases(family, tokens, seed))


def write_case(folder: Path, family: str, tokens: int, seed: int, case: Case) -> None:
    """Write any case into a folder, under a name for `load`."""
    _file(folder, family, tokens, seed).write_text(json.dumps(case), encoding="utf-8")


def load(folder: Path, family: str, tokens: int, seed: int) -> Case:
    """Return a case that `write` wrote."""
    case: Case = json.loads(_file(folder, family, tokens, seed).read_text("utf-8"))
    return case


def _file(folder: Path, family: str, tokens: int, seed: int) -> Path:
    return folder / f"{family}-{tokens}-{seed}.json"


def _rows(random: Random, chars: int, row_chars: int = _ROW_CHARS) -> list[Row]:
    count = max(8, chars // row_chars)
    return [(1000 + n, _name(random), random.choice(_REGIONS), random.randint(1, 999)) for n in range(count)]


def _name(random: Random) -> str:
    return f"{random.choice(_WORDS)}-{random.choice(_WORDS)}-{random.randrange(16**6):06x}"


def _csv(rows: list[Row]) -> str:
    lines = [f"{i},{name},{region},{amount},a note about this order" for i, name, region, amount in rows]
    return "\n".join(["id,name,region,amount,note", *lines]) + "\n"


def _json(rows: list[Row]) -> str:
    names = ("id", "name", "region", "amount")
    return json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=None).replace(
        "}, ", "},\n"
    )


def _markdown(rows: list[Row]) -> str:
    lines = [f"| {i} | {name} | {region} | {amount} |" for i, name, region, amount in rows]
    return "\n".join(["| id | name | region | amount |", "|---|---|---|---|", *lines]) + "\n"


def _aligned(rows: list[Row]) -> str:
    lines = [f"{i:<10}{name:<28}{region:<12}{amount:>8}" for i, name, region, amount in rows]
    return "\n".join([f"{'ID':<10}{'NAME':<28}{'REGION':<12}{'AMOUNT':>8}", *lines]) + "\n"


_PATTERNS = {
    "csv": r"(\d+),[\w-]+,(\w+),(\d+),a",
    "json": r'"id": (\d+), "name": "[^"]+", "region": "(\w+)", "amount": (\d+)',
    "markdown": r"\| (\d+) \| [\w-]+ \| (\w+) \| (\d+) \|",
    "aligned": r"(\d{4,}) +[a-z]+-[a-z]+-[0-9a-f]{6} +(\w+) +(\d+)",
}
_CHARS = {"csv": 63, "json": 78, "markdown": 47, "aligned": 59}
_WRITERS = {"csv": _csv, "json": _json, "markdown": _markdown, "aligned": _aligned}


def _call(argument: str = "") -> Case:
    return {"op": "call", "argument": argument}


def _one(of: int, key: str, pattern: str) -> Case:
    return {"op": "one", "of": of, "key": key, "pattern": pattern}


def _table(form: str) -> Make:
    def make(random: Random, chars: int) -> Case:
        return _summed(random, [_rows(random, chars, _CHARS[form])], form)

    return make


def _pages(random: Random, chars: int) -> Case:
    rows = _rows(random, chars, _CHARS["json"])
    step = -(-len(rows) // 4)
    return _summed(random, [rows[at : at + step] for at in range(0, len(rows), step)], "json")


def _summed(random: Random, pages: list[list[Row]], form: str) -> Case:
    where = random.choice(_REGIONS)
    rows = [row for page in pages for row in page]
    sums = {
        "op": "rows",
        "of": list(range(len(pages))),
        "pattern": _PATTERNS[form],
        "where": where,
        "rows": len(rows),
        "sql": f"select sum(amount) from t where region = '{where}'",  # noqa: S608 # a word of this module
        "steps": json.dumps(
            [
                {"filter": {"region": where}},
                {"group_by": {"field": "region", "metrics": {"answer": "sum:amount"}}},
            ]
        ),
    }
    answer = str(sum(amount for _, _, region, amount in rows if region == where))
    ops = [*(_call(f"page {n}") for n in range(len(pages))), sums]
    return {"ops": ops, "outputs": [_WRITERS[form](page) for page in pages], "answer": answer}


def _record(random: Random, chars: int) -> Case:
    rows = _rows(random, chars)
    number, name, region, amount = random.choice(rows)
    one = _one(0, f"{name},{region}", rf"(?:^|\D){number},{name},{region},(\d+),")
    return {"ops": [_call("orders"), one], "outputs": [_csv(rows)], "answer": str(amount)}


def _join(random: Random, chars: int) -> Case:
    orders, people = _rows(random, chars // 2), _rows(random, chars // 2)
    owner = {row[0]: random.choice(people) for row in orders}
    left = [f'{{"order": {row[0]}, "owner": "{owner[row[0]][1]}", "amount": {row[3]}}}' for row in orders]
    order = random.choice(orders)[0]
    person = owner[order]
    ops = [
        _call("orders"),
        _call("people"),
        _one(0, f'"order": {order},', rf'"order": {order}, "owner": "([\w-]+)"'),
        _one(1, "{0}", r"{0},(\w+),\d+,"),
    ]
    return {"ops": ops, "outputs": ["\n".join(left), _csv(people)], "answer": person[2]}


def _log(random: Random, chars: int) -> Case:
    lines = [
        f"[{n:>6}] compiling src/{_name(random)}.c with 0 errors, 0 warnings"
        for n in range(chars // _ROW_CHARS)
    ]
    place = f"src/{_name(random)}.c:{random.randint(2, 4000)}"
    lines.insert(random.randrange(len(lines)), f"{place}:7: error: 'width' undeclared (first use here)")
    ops = [_call("make"), _one(0, ": error:", r"(src/[\w.-]+:\d+):\d+: error:")]
    return {"ops": ops, "outputs": ["\n".join(lines) + "\nmake: *** [all] Error 2\n"], "answer": place}


def _chain(random: Random, chars: int) -> Case:
    outputs, ops = [], []
    names = [_name(random) for _ in range(6)]
    for n in range(5):
        rows = _rows(random, chars // 5)
        lines = [f"{row[1]} owns {_name(random)}" for row in rows]
        lines.insert(random.randrange(len(lines)), f"{names[n]} owns {names[n + 1]}")
        outputs.append("\n".join(lines))
        key = names[0] if n == 0 else f"{{{n - 1}}}"
        ops += [_call(key), _one(n, f"{key} owns", rf"{key} owns ([\w-]+)")]
    return {"ops": ops, "outputs": outputs, "answer": names[5]}


def _versions(random: Random, chars: int) -> Case:
    lines = [f"setting {n:>6} = {_name(random)}" for n in range(max(20, chars // 2 // 46))]
    new, at, value = list(lines), random.randrange(len(lines)), _name(random)
    new[at] = f"setting {at:>6} = {value}"
    diff = {"op": "diff", "old": 0, "new": 1, "pattern": r"setting +\d+ = [\w-]+", "lines": len(lines)}
    return {
        "ops": [_call("old"), _call("new"), diff],
        "outputs": ["\n".join(lines) + "\n", "\n".join(new) + "\n"],
        "answer": value,
    }


def _late(random: Random, chars: int) -> Case:
    outputs = [_csv(_rows(random, chars // 40)) for _ in range(40)]
    token = f"{random.randrange(16**12):012x}"
    lines = outputs[2].splitlines()
    lines.insert(len(lines) // 2, f"deployment token: {token}")
    outputs[2] = "\n".join(lines)
    ops = [*(_call(f"step {n}") for n in range(40)), _one(2, "deployment token", r"deployment token: (\w+)")]
    return {"ops": ops, "outputs": outputs, "answer": token}


def _left(to: str) -> Make:
    def make(random: Random, chars: int) -> Case:
        case = _record(random, chars)
        return {**case, "ops": [case["ops"][0], {"op": "leave", "to": to}, case["ops"][1]]}

    return make


def _compacted(random: Random, chars: int, *, is_short: bool) -> Case:
    outputs = [_csv(_rows(random, chars // 12)) for _ in range(12)]
    token = f"{random.randrange(16**12):012x}"
    lines = outputs[1].splitlines()
    lines.insert(len(lines) // 2, f"deployment token: {token}")
    outputs[1] = "\n".join(lines[len(lines) // 2 - 2 : len(lines) // 2 + 2] if is_short else lines)
    calls = [_call(f"step {n}") for n in range(12)]
    compact = {"op": "compact"}
    one = _one(1, "deployment token", r"deployment token: (\w+)")
    return {"ops": [*calls[:6], compact, *calls[6:], compact, one], "outputs": outputs, "answer": token}


def _shared(random: Random, chars: int) -> Case:
    rows = _rows(random, chars)
    picked = random.sample(rows, 2)
    agents = [
        {"ops": [_one(0, f"{name},{region}", rf"(?:^|\D){number},{name},{region},(\d+),")]}
        for number, name, region, _ in picked
    ]
    ops = [
        _call("orders"),
        {"op": "delegate", "number": 0},
        {"op": "delegate", "number": 1},
        {"op": "say", "text": "{0} and {1}"},
    ]
    answer = " and ".join(str(amount) for *_, amount in picked)
    return {"ops": ops, "agents": agents, "outputs": [_csv(rows)], "answer": answer}


def _long_line(random: Random, chars: int) -> Case:
    rows = _rows(random, chars, 84)
    number, _, _, amount = random.choice(rows)
    pattern = rf'"id": {number}, "name": "[\w-]+", "region": "\w+", "amount": (\d+)'
    text = _json(rows).replace("\n", " ")
    return {
        "ops": [_call("export"), _one(0, f'"id": {number},', pattern)],
        "outputs": [text],
        "answer": str(amount),
    }


FAMILIES: dict[str, Make] = {
    "find one record": _record,
    "sum over pages of an API": _pages,
    "follow an id into a second result": _join,
    "error in a build log": _log,
    "chain of ids over five tools": _chain,
    "compare two versions": _versions,
    "value of result 3 in call 41": _late,
    "continue in a new process": _left("process"),
    "continue on another machine": _left("machine"),
    "large result before two compactions": partial(_compacted, is_short=False),
    "short result before two compactions": partial(_compacted, is_short=True),
    "two agents share a result": _shared,
    "one long line": _long_line,
    "sum over CSV": _table("csv"),
    "sum over JSON": _table("json"),
    "sum over Markdown": _table("markdown"),
    "sum over aligned text": _table("aligned"),
}


class _Work:
    """The case of an editing family as it grows: its files are as they are to be after each op."""

    def __init__(self, random: Random, chars: int, files: int = 1, *, results: int) -> None:
        """Make the files; the rest of the tool output is in `results` other results."""
        file_chars = min(chars // 3, _MOST_FILE_CHARS) // files
        self._random, self._chars = random, (chars - file_chars * files) // results
        self.ops, self._outputs = list[Case](), list[str]()
        self._files, self._places = dict[str, str](), dict[str, list[Place]]()
        for _ in range(files):
            path = f"src/{_name(random)}.py"
            self._files[path], self._places[path] = module(random, file_chars)
        self.paths, self._before = list(self._files), dict(self._files)

    def read(self, path: str) -> None:
        """Read a file."""
        self._add({"op": "read", "path": path})

    def results(self, count: int) -> None:
        """Call other tools, which return much."""
        for _ in range(count):
            self._add(_call(f"step {len(self.ops)}"), _csv(_rows(self._random, self._chars, _CHARS["csv"])))

    def edit(self, path: str, share: float) -> None:
        """Edit the place at this share of the file."""
        place = self._places[path][int(share * len(self._places[path]))]
        quote, to = found(self._files[path], place), str(self._random.randint(1000, 9999))
        after = edited(self._files[path], quote, changed(quote, to))
        if after is None:
            raise ValueError(f"{quote!r} is not once in the file")
        self._files[path] = after
        self._add({"op": "edit", "path": path, "to": to, **place._asdict()})

    def format(self, path: str) -> None:
        """Run the formatter on a file."""
        self._files[path] = formatted(self._files[path])
        self._add({**_call(f"format {path}"), "formats": path}, "1 file reformatted")

    def compact(self) -> None:
        """Compact the conversation."""
        self.ops.append({"op": "compact"})

    def case(self) -> Case:
        """Return the case."""
        done = {"op": "say", "text": "done"}
        case = {"ops": [*self.ops, done], "outputs": self._outputs, "answer": "done"}
        return {**case, "files": self._before, "edited": self._files}

    def _add(self, op: Case, output: str = "") -> None:
        self.ops.append(op)
        self._outputs.append(output)


def _many_edits(random: Random, chars: int) -> Case:
    work = _Work(random, chars, results=14)
    (path,) = work.paths
    work.read(path)
    for share in (0.5, 0.9, 0.1, 0.7, 0.3, 0.55, 0.1):
        work.results(2)
        work.edit(path, share)
    return work.case()


def _files_in_turn(random: Random, chars: int) -> Case:
    work = _Work(random, chars, files=4, results=12)
    for path in work.paths:
        work.read(path)
    for share in (0.6, 0.2, 0.85):
        for path in work.paths:
            work.results(1)
            work.edit(path, share)
    return work.case()


def _edits_after_compaction(random: Random, chars: int) -> Case:
    work = _Work(random, chars, results=12)
    (path,) = work.paths
    work.read(path)
    work.edit(path, 0.4)
    work.results(8)
    work.compact()
    for share in (0.75, 0.15, 0.4, 0.95):
        work.results(1)
        work.edit(path, share)
    return work.case()


def _read_long_ago(random: Random, chars: int) -> Case:
    work = _Work(random, chars, results=24)
    (path,) = work.paths
    work.read(path)
    work.results(24)
    for share in (0.35, 0.8, 0.6, 0.05):
        work.edit(path, share)
    return work.case()


def _second_version(random: Random, chars: int) -> Case:
    work = _Work(random, chars, results=12)
    (path,) = work.paths
    work.read(path)
    work.edit(path, 0.45)
    work.results(1)
    work.format(path)
    work.read(path)
    work.results(7)
    for share in (0.25, 0.65, 0.45, 0.9):
        work.results(1)
        work.edit(path, share)
    return work.case()


EDITING: dict[str, Make] = {
    "one file many times": _many_edits,
    "several files in turn": _files_in_turn,
    "after a compaction": _edits_after_compaction,
    "a file read long ago": _read_long_ago,
    "a second version read since": _second_version,
}
