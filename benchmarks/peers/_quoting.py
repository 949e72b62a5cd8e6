"""How the scripted agent edits: it quotes what the newest text in view shows, or reads again until one does.

A text in view is a result of a tool, an answer of a search, or the agent's own last edit of a place. What
shows the file as it was before a formatter ran is never quoted. Without a text in view the agent searches the
newest result that had the file, for the beginning of the place and the lines around it; then it reads the
lines at the number that the search names, or all pages; then it reads the file again, page by page, and
searches a page of which it is shown less than its lines. After a failed edit it does not quote what it saw
before.
"""

from __future__ import annotations

import re

from peers._editing import FAILED, PAGE_LINES, PLACE_LINES, changed
from peers._known import Known, Step, next_page, read_back, tool_ops

_MOST_FAILURES = 2
# A place on the edge of a page is whole on the next one.
_STEP = PAGE_LINES - PLACE_LINES + 1
# How results, searches and previews number lines, and how a search over files names one.
_NUMBER = re.compile(r"^[ >]*@?(\d+)(?:[:|] | {1,2})")
_FILE = re.compile(r"^(/\S+):$", re.MULTILINE)


def edit_of(known: Known, task: Step) -> Step:
    """Return the next step of the edit that is to be done now: itself, or one that looks for its text.

    Args:
        known: what the messages say.
        task: see `_agent.next_step`.
    """
    *before, op = tool_ops(task)[: known.calls + 1]
    path, failures = op["path"], [at for at, number in known.failed if number == known.calls]
    if len(failures) == _MOST_FAILURES:
        return {"answer": ""}
    after = max(failures, default=-1)
    formatted = max((number for number, done in enumerate(before) if done.get("formats") == path), default=-1)
    sights = [
        sight
        for sight in known.sights
        if sight.path == path and sight.version > formatted and sight.at > after
    ]
    for sight in sorted(sights, key=lambda sight: (sight.version, sight.at), reverse=True):
        if quote := _shown(sight.text, op["pattern"]):
            return {"tool": "edit", "path": path, "old": quote, "new": changed(quote, op["to"])}
    reads = [
        n for n, done in enumerate(before) if done["op"] == "read" and done["path"] == path and n > formatted
    ]
    step = _looked_up(known, op, task, reads[-1]) if reads and not failures else None
    return step or _read_again(known, op, task, after)


def _looked_up(known: Known, op: Step, task: Step, of: int) -> Step | None:
    """Return a call that reads the newest result with the file; None if there is no other."""
    has_name = of in known.shown or of in known.stored
    asked = [
        (step, text) for step, text, _ in known.reads if "at" not in step and step.get("edit") == known.calls
    ]
    about = {"path": op["path"], "edit": known.calls}
    if not asked and ("find" if has_name else "find_all") in task["verbs"]:
        return read_back(known, of, "near" if has_name else "near_all", op["key"]) | about
    line = _line(asked[-1][1], op["key"]) if asked else None
    if line and "lines" in task["verbs"] and asked[-1][0]["verb"] != "at":
        file, number = line
        return read_back(known, of, "at", number - 1) | about | ({} if has_name else {"ref": file})
    page = next_page(known, of, task, _STEP) if has_name else None
    return page and page | about


def _read_again(known: Known, op: Step, task: Step, after: int) -> Step:
    """Return a call that reads the next page of the file, or searches the last one if it is not whole."""
    about = {"path": op["path"], "edit": known.calls}
    pages = [(text, at) for step, text, at in known.pages if at > after and step["edit"] == known.calls]
    if pages:
        text, last = pages[-1]
        if text.startswith(FAILED):
            return {"answer": ""}
        is_searched = any(step.get("at") == last for step, _, _ in known.reads)
        if text.count("\n") < PAGE_LINES and not is_searched and "find" in task["verbs"]:
            return read_back(known, known.calls, "near", op["key"]) | about | {"at": last}
    return {"tool": "read", "first": 1 + len(pages) * _STEP, **about}


def _line(text: str, key: str) -> tuple[str, int] | None:
    """Return the file and the number of the last line that begins with `key`, as a search shows them."""
    found = list(re.finditer(rf"^[ >]*(\d+)[:|] ?{re.escape(key)}", text, re.MULTILINE))
    if not found:
        return None
    files = _FILE.findall(text[: found[-1].start()])
    return files[-1] if files else "", int(found[-1][1])


def _shown(text: str, pattern: str) -> str:
    """Return the last place in a text that looks like `pattern`, without line numbers; "" if none does."""
    for form in (text, _unnumbered(text)):
        if places := re.findall(pattern, form, re.MULTILINE):
            return str(places[-1])
    return ""


def _unnumbered(text: str) -> str:
    """Return a text without its line numbers; where they go on by more than one, with an empty line."""
    lines, last = list[str](), None
    for line in text.split("\n"):
        found = _NUMBER.match(line)
        number = int(found[1]) if found else None
        if last is not None and number is not None and number != last + 1:
            lines.append("")
        lines.append(line[found.end() :] if found else line)
        last = number
    return "\n".join(lines)
