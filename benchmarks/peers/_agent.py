"""A scripted agent: a function from the messages of a conversation to its next call or its answer.

It knows what stands in its messages and nothing else. What it may read back with is named by verbs: `find`
(a literal text), `lines`, `chars` (pages), `query` (SQL), `diff`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

# Above this many rows nobody pages through a table, nor through two files.
_MOST_ROWS_TO_PAGE = 400
_PAGE_LINES = 200
# How the tools of the candidates say that a search shows only a part.
_PARTIAL = re.compile(
    r'has_more": true|(?<!no )\bmore\b|truncat|omitted|\bfirst \d+|answer full|cursor=', re.IGNORECASE
)
_SHOWN_OF = re.compile(
    r'(\d[\d,]*) matching line\(s\); showing (\d[\d,]*)|matching_all_words": (\d+), "returned": (\d+)'
)
_FAILED = "error: "

Message = dict[str, Any]
Step = dict[str, Any]


class _Known(NamedTuple):
    """What the messages say: the shown text of each result, and the read-backs of each with their answers."""

    shown: list[str]
    reads: list[tuple[Step, str]]

    def of(self, result: int, verb: str = "") -> list[tuple[Step, str]]:
        return [
            (call, text) for call, text in self.reads if call["of"] == result and verb in ("", call["verb"])
        ]


def next_step(messages: list[Message]) -> Step:
    """Return the next call, or `{"answer": text}`; the text is empty if the agent cannot go on.

    Args:
        messages: the task as JSON (`ops`, `verbs`, `page_chars`), then calls and what was shown for each.
    """
    task = json.loads(messages[0]["content"])
    known, calls, facts = _known(messages[1:]), 0, list[str]()
    for op in task["ops"]:
        if op["op"] == "call":
            if calls == len(known.shown):
                return {"tool": "call", "argument": _filled(op["argument"], facts)}
            calls += 1
        elif op["op"] != "reopen":
            step = _READERS[op["op"]](known, op, task, facts)
            if isinstance(step, dict):
                return step
            facts.append(step)
    return {"answer": facts[-1]}


def _known(messages: list[Message]) -> _Known:
    known = _Known([], [])
    for asked, answered in zip(messages[::2], messages[1::2], strict=True):
        step = json.loads(asked["content"])
        if step["tool"] == "call":
            known.shown.append(answered["content"])
        else:
            # Some tools answer with JSON, in which a text is escaped: a model reads through that.
            text = answered["content"].replace("\\n", "\n").replace('\\"', '"')
            known.reads.append((step, text))
    return known


def _one(known: _Known, op: Step, task: Step, facts: list[str]) -> Step | str:
    key, pattern, of = _filled(op["key"], facts), _filled(op["pattern"], facts), op["of"]
    texts = [known.shown[of], *(text for _, text in known.of(of))]
    for text in texts:
        if found := re.search(pattern, text):
            return found[1]
    if "find" in task["verbs"] and not known.of(of, "find"):
        return _read(of, "find", key)
    return _next_page(known, of, task) or {"answer": ""}


def _sum(known: _Known, op: Step, task: Step, facts: list[str]) -> Step | str:  # noqa: ARG001 # no facts needed
    if "query" in task["verbs"]:
        return _queried(known, op) or _added(known, op, task)
    return _added(known, op, task)


def _queried(known: _Known, op: Step) -> Step | str | None:
    """Return the sum of what SQL says of each result that is not shown whole; None if it cannot be read."""
    total = 0
    for of in op["of"]:
        answers = known.of(of, "query")
        if not answers and _is_replaced(known, of, op):
            return _read(of, "query", op["sql"])
        if answers:
            found = re.search(r"^\W*(\d+)\W*$", answers[0][1], re.MULTILINE)
            if found is None:
                return None
            total += int(found[1])
        else:
            total += _total(known.shown[of], op)[0]
    return str(total)


def _added(known: _Known, op: Step, task: Step) -> Step | str:
    """Read every row, or of many those that a search for the value shows, unless it says it is partial."""
    if op["rows"] > _MOST_ROWS_TO_PAGE and "find" in task["verbs"]:
        return _found_rows(known, op)
    text = "\n".join([*known.shown, *(text for _, text in known.reads)])
    total, rows = _total(text, op)
    if rows == op["rows"]:
        return str(total)
    for of in op["of"]:
        if _is_replaced(known, of, op) and (page := _next_page(known, of, task)):
            return page
    return {"answer": ""}


def _found_rows(known: _Known, op: Step) -> Step | str:
    texts = []
    for of in op["of"]:
        if not _is_replaced(known, of, op):
            texts.append(known.shown[of])
            continue
        answers = known.of(of, "find")
        if not answers:
            return _read(of, "find", op["where"])
        if _is_partial(answers[0][1]) or answers[0][1].startswith(_FAILED):
            return {"answer": ""}
        texts.append(answers[0][1])
    return str(_total("\n".join(texts), op)[0])


def _is_partial(text: str) -> bool:
    counts = _SHOWN_OF.search(text)
    is_short = counts is not None and (counts[1], counts[3]) != (counts[2], counts[4])
    return bool(_PARTIAL.search(text)) or is_short


def _total(text: str, op: Step) -> tuple[int, int]:
    """Return the sum over the wanted rows of a text, and how many rows it has; a row counts once."""
    rows = {found[1]: (found[2], int(found[3])) for found in re.finditer(op["pattern"], text)}
    return sum(amount for region, amount in rows.values() if region == op["where"]), len(rows)


def _is_replaced(known: _Known, of: int, op: Step) -> bool:
    """Return whether a result does not show its share of the rows."""
    share: int = op["rows"] // len(op["of"]) - len(op["of"])
    return _total(known.shown[of], op)[1] < share


def _compare(known: _Known, op: Step, task: Step, facts: list[str]) -> Step | str:  # noqa: ARG001 # no facts needed
    old, new = op["old"], op["new"]
    if "diff" in task["verbs"]:
        answers = known.of(new, "diff")
        if not answers:
            return _read(new, "diff", old)
        found = re.search(rf"^\+ *({op['pattern']})", answers[0][1], re.MULTILINE)
        if found:
            return found[1].rpartition(" ")[2]
    sides = [set(re.findall(op["pattern"], _whole(known, of))) for of in (old, new)]
    if [len(side) for side in sides] == [op["lines"]] * 2:
        (line,) = sides[1] - sides[0]
        return str(line).rpartition(" ")[2]
    if op["lines"] <= _MOST_ROWS_TO_PAGE:
        for of, side in zip((old, new), sides, strict=True):
            if len(side) < op["lines"] and (page := _next_page(known, of, task)):
                return page
    return {"answer": ""}


def _whole(known: _Known, of: int) -> str:
    return "\n".join([known.shown[of], *(text for _, text in known.of(of))])


def _next_page(known: _Known, of: int, task: Step) -> Step | None:
    """Return the next page of a result by lines, or by characters; None after the last."""
    for verb in ("lines", "chars"):
        if verb not in task["verbs"]:
            continue
        pages = known.of(of, verb)
        is_over = pages and (pages[-1][1].startswith(_FAILED) or pages[-1][1] in [t for _, t in pages[:-1]])
        if not is_over:
            step = _PAGE_LINES if verb == "lines" else task["page_chars"]
            return _read(of, verb, len(pages) * step)
    return None


def _read(of: int, verb: str, argument: str | int) -> Step:
    return {"tool": "read back", "of": of, "verb": verb, "argument": argument}


def _filled(text: str, facts: list[str]) -> str:
    for number, fact in enumerate(facts):
        text = text.replace(f"{{{number}}}", fact)
    return text


_READERS = {"one": _one, "rows": _sum, "diff": _compare}
