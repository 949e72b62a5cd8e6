"""A scripted agent: a function from the messages of a conversation to its next call or its answer.

It knows what stands in its messages and nothing else. What it may read back with is named by verbs: `find`
(a literal text in one result, or in all that is stored), `lines`, `chars` (pages), `query`, `diff`.

As a program it answers each line of its input, the messages as JSON, in a process that is forked for it and
knows no other line.
"""

from __future__ import annotations

import json
import os
import re
import sys

from peers._editing import FAILED
from peers._known import TOOL_OPS, Known, Message, Step, known_of, next_page, read_back
from peers._quoting import edit_of

# Above this many rows nobody pages through a table, nor through two files.
_MOST_ROWS_TO_PAGE = 400
# How the tools of the candidates say that a search shows only a part.
_PARTIAL = re.compile(
    r'has_more": true|(?<!no )\bmore\b|truncat|omitted|\bfirst \d+|answer full|cursor=|stopped early',
    re.IGNORECASE,
)
_SHOWN_OF = re.compile(
    r'(\d[\d,]*) matching line\(s\); showing (\d[\d,]*)|matching_all_words": (\d+), "returned": (\d+)'
)
# What each candidate's text or documentation says of going on with such a search: a cursor, lines to leave
# out, the line to begin at, or once a larger number of matches.
_GO_ON = re.compile(r'repeat with cursor="([^"]+)"')
_LINES_OF = re.compile(r"(\d[\d,]*) matching line\(s\); showing (\d+)(, output capped)?")
_TRUNCATED = "output truncated, narrow your search"
_NUMBERED = re.compile(r"^[ >]*(\d+)[:|]", re.MULTILINE)
_RAISED = {'has_more": true': "50", '"matching_all_words"': "50", "raise max_count": "100000"}
# Passages may cut the rows in them.
_OCCURRENCES = re.compile(r'"match": ?"phrase", ?"occurrences": ?(\d+)')


def next_step(messages: list[Message]) -> Step:
    """Return the next call, or `{"answer": text}`; the text is empty if the agent cannot go on.

    Args:
        messages: the task as JSON (`ops`, `verbs`, `page_chars`, `language`), perhaps a notice of removed
            messages, then calls and what was shown for each.
    """
    task = json.loads(messages[0]["content"])
    known, number, facts = known_of(messages[1:], task), len(task.get("given", [])), list[str]()
    reports = iter(known.reports)
    for op in task["ops"]:
        if op["op"] in TOOL_OPS:
            if number == known.calls:
                return _called(known, op, task, facts)
            number += 1
        elif op["op"] == "delegate":
            report = next(reports, None)
            if not report:
                return {"answer": ""} if report == "" else {"tool": "delegate", "argument": op["number"]}
            facts.append(report)
        elif op["op"] in _READERS:
            step = _READERS[op["op"]](known, op, task, facts)
            if isinstance(step, dict):
                return step
            facts.append(step)
    return {"answer": facts[-1]}


def _called(known: Known, op: Step, task: Step, facts: list[str]) -> Step:
    if op["op"] == "edit":
        return edit_of(known, task)
    if op["op"] == "read":
        return {"tool": "read", "path": op["path"]}
    return {"tool": "call", "argument": _filled(op["argument"], facts)}


def _one(known: Known, op: Step, task: Step, facts: list[str]) -> Step | str:
    key, pattern, of = _filled(op["key"], facts), _filled(op["pattern"], facts), op["of"]
    texts = [known.shown.get(of, ""), *(text for _, text in known.of(of))]
    for text in texts:
        if found := re.search(pattern, text):
            return found[1]
    verb = "find" if of in known.shown or of in known.stored else "find_all"
    searches = known.of(of, verb)
    more = _rest(searches) if searches else ""
    if verb in task["verbs"] and (more or not searches):
        return read_back(known, of, verb, key, more or "")
    if verb == "find_all":
        return {"answer": ""}
    return next_page(known, of, task) or {"answer": ""}


def _say(known: Known, op: Step, task: Step, facts: list[str]) -> str:  # noqa: ARG001 # all is said
    return _filled(op["text"], facts)


def _sum(known: Known, op: Step, task: Step, facts: list[str]) -> Step | str:  # noqa: ARG001 # no facts needed
    if "query" in task["verbs"]:
        return _queried(known, op, task) or _added(known, op, task)
    return _added(known, op, task)


def _queried(known: Known, op: Step, task: Step) -> Step | str | None:
    """Return the sum of what a query says of each result that is not shown whole; None if it fails."""
    total = 0
    for of in op["of"]:
        answers = known.of(of, "query")
        if not answers and _is_replaced(known, of, op):
            return read_back(known, of, "query", op[task["language"]])
        if answers:
            found = re.search(r'^\W*(\d+)\W*$|"answer": ?(\d+)', answers[0][1], re.MULTILINE)
            if found is None:
                return None
            total += int(found[1] or found[2])
        else:
            total += _total(known.shown[of], op)[0]
    return str(total)


def _added(known: Known, op: Step, task: Step) -> Step | str:
    """Read every row, or of many those that a search for the value shows, unless a part cannot be seen."""
    if op["rows"] > _MOST_ROWS_TO_PAGE and "find" in task["verbs"]:
        return _found_rows(known, op)
    text = "\n".join([*known.shown.values(), *(text for _, text, _ in known.reads)])
    total, rows = _total(text, op)
    if rows == op["rows"]:
        return str(total)
    for of in op["of"]:
        if _is_replaced(known, of, op) and (page := next_page(known, of, task)):
            return page
    return {"answer": ""}


def _found_rows(known: Known, op: Step) -> Step | str:
    texts = []
    for of in op["of"]:
        if not _is_replaced(known, of, op):
            texts.append(known.shown[of])
            continue
        answers = known.of(of, "find")
        more = _rest(answers) if answers else ""
        if more is None:
            return {"answer": ""}
        if more or not answers:
            return read_back(known, of, "find", op["where"], more)
        texts += [text for _, text in answers]
        said = _OCCURRENCES.search(answers[-1][1])
        if said and _wanted("\n".join(text for _, text in answers), op) < int(said[1]):
            return {"answer": ""}
    return str(_total("\n".join(texts), op)[0])


def _is_partial(text: str) -> bool:
    counts = _SHOWN_OF.search(text)
    is_short = counts is not None and (counts[1], counts[3]) != (counts[2], counts[4])
    return bool(_PARTIAL.search(text)) or is_short


def _rest(answers: list[tuple[Step, str]]) -> str | None:
    """Return where a search goes on, as its answers say: "" if it is over, None if they do not say."""
    call, text = answers[-1]
    if found := _GO_ON.search(text):
        return found[1]
    if found := _LINES_OF.search(text):
        pages = [page for _, other in answers if (page := _LINES_OF.search(other))]
        seen = sum(_count(page[2]) for page in pages)
        return None if found[3] else "" if seen == _count(found[1]) else str(seen)
    if text.startswith(FAILED) or not _is_partial(text):
        return None if text.startswith(FAILED) else ""
    numbers = _NUMBERED.findall(text) if _TRUNCATED in text else []
    if numbers and numbers[-1] != call["more"]:
        return str(numbers[-1])
    return next((more for sign, more in _RAISED.items() if sign in text and not call["more"]), None)


def _count(number: str) -> int:
    return int(number.replace(",", ""))


def _total(text: str, op: Step) -> tuple[int, int]:
    """Return the sum over the wanted rows of a text, and how many rows it has; a row counts once."""
    rows = {found[1]: (found[2], int(found[3])) for found in re.finditer(op["pattern"], text)}
    return sum(amount for region, amount in rows.values() if region == op["where"]), len(rows)


def _wanted(text: str, op: Step) -> int:
    """Return how many of the wanted rows a text shows whole."""
    return len({found[1] for found in re.finditer(op["pattern"], text) if found[2] == op["where"]})


def _is_replaced(known: Known, of: int, op: Step) -> bool:
    """Return whether a result does not show its share of the rows."""
    share: int = op["rows"] // len(op["of"]) - len(op["of"])
    return _total(known.shown[of], op)[1] < share


def _compare(known: Known, op: Step, task: Step, facts: list[str]) -> Step | str:  # noqa: ARG001 # no facts needed
    old, new = op["old"], op["new"]
    if "diff" in task["verbs"]:
        answers = known.of(new, "diff")
        if not answers:
            return read_back(known, new, "diff", old)
        found = re.search(rf"^\+ *({op['pattern']})", answers[0][1], re.MULTILINE)
        if found:
            return found[1].rpartition(" ")[2]
    sides = [set(re.findall(op["pattern"], _whole(known, of))) for of in (old, new)]
    if [len(side) for side in sides] == [op["lines"]] * 2:
        (line,) = sides[1] - sides[0]
        return str(line).rpartition(" ")[2]
    if op["lines"] <= _MOST_ROWS_TO_PAGE:
        for of, side in zip((old, new), sides, strict=True):
            if len(side) < op["lines"] and (page := next_page(known, of, task)):
                return page
    return {"answer": ""}


def _whole(known: Known, of: int) -> str:
    return "\n".join([known.shown.get(of, ""), *(text for _, text in known.of(of))])


def _filled(text: str, facts: list[str]) -> str:
    for number, fact in enumerate(facts):
        text = text.replace(f"{{{number}}}", fact)
    return text


_READERS = {"one": _one, "rows": _sum, "diff": _compare, "say": _say}


def main() -> None:
    """Answer each line in a process of its own."""
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            sys.stdout.write(json.dumps(next_step(json.loads(line))) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
