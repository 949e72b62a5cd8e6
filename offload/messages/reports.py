"""Reports of background tasks: a coding agent passes the result of a subagent inside a text, between tags.

The text is one of the user or, in the middle of a conversation, of the system. The report alone is replaced;
the tags around it, which name the task and its state, are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from offload.base.patterns import lazy_pattern
from offload.messages._shapes import Shape
from offload.messages.access import Path, get, with_field

# The tool of a report whose call is not in the messages.
REPORTING_TOOL = "Agent"
_OPENING, _CLOSING = "<task-notification>", "</task-notification>"
_START, _END = "<result>", "</result>"
_NEXT = lazy_pattern(rf"{_CLOSING}[^<]{{0,500}}(?={_OPENING})")
_CALL = lazy_pattern(r"<tool-use-id>\s*([^<>\s]{1,200})\s*</tool-use-id>")
# More around a report is another text that quotes one.
_MOST_AROUND = 4_000


class Report(NamedTuple):
    """The place of a report in a text, and the id of the tool call that started its task."""

    start: int
    end: int
    call: str | None


def reports_in(text: str) -> list[Report]:
    """Return the reports in a text, one for each notification that has a result."""
    if _OPENING not in text:
        return []
    starts = [0, *(match.end() for match in _NEXT.finditer(text))]
    found = (_report(text, *ends) for ends in zip(starts, [*starts[1:], len(text)], strict=True))
    return [report for report in found if report is not None]


def _report(text: str, first: int, last: int) -> Report | None:
    """Return the report between two places, which have one notification."""
    opening, closing = text.find(_OPENING, first, last), text.rfind(_CLOSING, first, last)
    start, end = text.find(_START, max(opening, 0), last), text.rfind(_END, first, max(closing, first))
    if opening < 0 or not opening < start < end:
        return None
    start += len(_START)
    if start > end or start - first > _MOST_AROUND or last - end > _MOST_AROUND:
        return None
    call = _CALL.search(text, opening, start)
    return Report(start, end, call[1] if call else None)


class ReportShape(Shape):
    """The place of report `number` in a text, which is the value or the field `text` of a block."""

    def __init__(self, number: int) -> None:
        self._number = number

    def places(self, value: Any) -> Iterable[Path]:
        return ((),) if isinstance(value, str) else (("text",),)

    def replace(self, value: Any, text: str) -> Any:
        """Return `value` with `text` in place of the report.

        Raises `ValueError` if `text` could not be found there again.
        """
        whole = value if isinstance(value, str) else get(value, "text")
        before = reports_in(whole)
        place = before[self._number]
        changed = whole[: place.start] + text + whole[place.end :]
        after = reports_in(changed)
        if len(after) != len(before) or changed[slice(*after[self._number][:2])] != text:
            raise ValueError("the text in place of a report has the tags of another one")
        return changed if isinstance(value, str) else with_field(value, "text", changed)

    def restore(self, value: Any, text: str, _form: str | None) -> Any:
        whole = value if isinstance(value, str) else get(value, "text")
        place = reports_in(whole)[self._number]
        changed = whole[: place.start] + text + whole[place.end :]
        return changed if isinstance(value, str) else with_field(value, "text", changed)
