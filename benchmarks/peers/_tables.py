"""The tables of the comparison: a row a candidate, a cell what it did, in words where it did not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from _measure import duration, size

# Candidate → task → the answers of the rounds; under "work" what the work was.
Results = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, and the figure in it where there is one."""

    text: str
    value: float | None = None
    unit: str = ""


_Make = Callable[[Results, dict[str, list[Any]]], Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """A title and its columns, each with what makes its cells."""

    title: str
    columns: dict[str, _Make]


def tables(results: Results, versions: dict[str, str]) -> str:
    """Return the whole comparison as Markdown."""
    work, candidates = results["work"], {n: r for n, r in results.items() if n != "work"}
    texts = work["texts"][0]
    releases = ", ".join(f"{name} {version}" for name, version in versions.items())
    large = size(work["large"][0])
    parts = [
        f"{releases}. {texts['count']} results of {texts['chars']:,} characters; a large one of {large}."
    ]
    for table in _TABLES:
        rows = [
            [name, *(make(results, r).text for make in table.columns.values())]
            for name, r in candidates.items()
        ]
        parts.append(f"### {table.title}\n\n{markdown(['', *table.columns], rows)}")
    return "\n\n".join(parts) + "\n"


def rows_of(results: Results, versions: dict[str, str]) -> list[dict[str, Any]]:
    """Return every cell, and the versions, as rows that `run.py` takes."""
    rows: list[dict[str, Any]] = [
        {"name": f"version of {name}", "value": None, "unit": "", "detail": version, "verdict": ""}
        for name, version in versions.items()
    ]
    for name, answers in results.items():
        for column, make in (c for table in _TABLES for c in table.columns.items() if name != "work"):
            cell = make(results, answers)
            found = {"value": cell.value, "unit": cell.unit, "detail": cell.text}
            rows.append({"name": f"{name}: {column}", **found, "verdict": ""})
    return rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
        for line in lines
    )


def _spread(values: Sequence[float], show: Callable[[float], str] = duration, unit: str = "s") -> Cell:
    text = show(median(values))
    if len(values) > 1:
        text += f" ({show(min(values))}-{show(max(values))})"
    return Cell(text, median(values), unit)


def _import(_: Results, answers: dict[str, list[Any]]) -> Cell:
    pairs = list(zip(answers["import"], answers["bare"], strict=True))
    if any("seconds" not in given for given, _ in pairs):
        return Cell(answers["import"][0]["state"])
    return _spread([max(0.0, given["seconds"] - bare["seconds"]) for given, bare in pairs])


def timed(task: str, key: str, show: Callable[[float], str] = duration, unit: str = "s") -> _Make:
    """Return a function that makes a cell: one figure of a task with its spread over the rounds."""

    def make(_: Results, answers: dict[str, list[Any]]) -> Cell:
        given = answers[task]
        if any(key not in answer for answer in given):
            return Cell(given[0].get("state", "fails"))
        return _spread([answer[key] for answer in given], show, unit)

    return make


def _share(task: str, key: str) -> _Make:
    """Return what makes a cell of a figure over the characters of the transcripts."""

    def make(results: Results, answers: dict[str, list[Any]]) -> Cell:
        given, chars = answers[task][-1], results["work"]["texts"][0]["chars"]
        if key not in given:
            return Cell(given.get("state", "fails"))
        return Cell(f"{given[key] / chars:.3f}", given[key] / chars, "x")

    return make


def _writers(_: Results, answers: dict[str, list[Any]]) -> Cell:
    given = answers["writers"][-1]
    if "found" not in given:
        return Cell(given["state"])
    failed = f", {len(given['errors'])} raised {given['errors'][0][:60]}" if given["errors"] else ""
    return Cell(
        f"{given['found']} of {given['of']} in {duration(given['seconds'])}{failed}", given["seconds"], "s"
    )


def _part(name: str) -> _Make:
    """Return what makes a cell of one way of reading: shown or not, its time, its length and its calls."""

    def make(_: Results, answers: dict[str, list[Any]]) -> Cell:
        given = [answer.get(name, answer) for answer in answers["reading"]]
        if any("seconds" not in answer for answer in given):
            return Cell(given[0]["state"])
        last, spent = given[-1], _spread([answer["seconds"] for answer in given])
        calls = f", {last['calls']} calls" if last["calls"] > 1 else ""
        state = "" if last["state"] == "shown" else f"**{last['state']}**, "
        return Cell(f"{state}{spent.text}, {last['chars']:,} characters{calls}", spent.value, "s")

    return make


def _weighed(task: str) -> _Make:
    def make(_: Results, answers: dict[str, list[Any]]) -> Cell:
        given = answers[task][-1]
        if "seconds" not in given:
            return Cell(given["state"])
        state = "" if given["state"] == "stored" else f"**{given['state']}**, "
        memory = f"{given['bytes'] / 10**6:,.0f} MB"
        return Cell(f"{state}{duration(given['seconds'])}, {memory}", given["seconds"], "s")

    return make


def _regex(pattern: str) -> _Make:
    def make(_: Results, answers: dict[str, list[Any]]) -> Cell:
        given = answers[pattern][-1]
        spent = f" in {duration(given['seconds'])}" if "seconds" in given else ""
        return Cell(f"{given['state']}{spent}", given.get("seconds"), "s")

    return make


def _state(task: str, key: str) -> _Make:
    def make(_: Results, answers: dict[str, list[Any]]) -> Cell:
        given = answers[task][-1]
        return Cell(str(given.get(key, given.get("state", "fails"))))

    return make


def _kill(_: Results, answers: dict[str, list[Any]]) -> Cell:
    given = answers["kill"][-1]
    if "half" not in given:
        return Cell(given["state"])
    return Cell(
        f"half {given['half']}, whole {given['whole']}, nothing {given['nothing']}", given["half"], ""
    )


_TABLES = (
    Table(
        "Offload",
        {
            "import, beyond a bare interpreter": _import,
            "all large results of the transcripts": timed("transcripts", "seconds"),
            "left in context, of the characters": _share("transcripts", "shown"),
            "at rest, of the characters": _share("transcripts", "stored"),
            "a session of 10 KB results": timed("session", "seconds"),
            "its last hundred / its first": timed("session", "growth", "{:.2f}".format, "x"),
            "processes at once: found, time": _writers,
            "large result: time, memory beyond the text": _weighed("large"),
            "the same in parts": _weighed("stream"),
        },
    ),
    Table(
        "Read back",
        {
            "100 lines from line 19,950 of 5 MB": _part("lines"),
            "last 20 lines of 5 MB": _part("tail"),
            "8 KB at 90 % of a 5 MB line": _part("chars"),
            "needle at 90 % of a 5 MB line": _part("find"),
            "of a 10 MB line": _part("find_long"),
            "regex `(a+)+$`": _regex("(a+)+$"),
            "regex `(a|a)*§`": _regex("(a|a)*§"),
        },
    ),
    Table(
        "What is lost",
        {
            "the store cannot write": _state("failing", "state"),
            "two agents use one call id": _state("one_id", "agents"),
            "one agent uses a call id twice": _state("one_id", "agent"),
            "killed in the middle, then read": _kill,
        },
    ),
)
