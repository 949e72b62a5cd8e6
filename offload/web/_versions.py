"""Versions of a source: the older records of a session with its title and tool, and the diff to one."""

from __future__ import annotations

from itertools import islice
from typing import Any

from offload.errors import NotFoundError
from offload.reading.tools._diff import Diff, row_text
from offload.records.codec.content import StoredContent
from offload.records.record import RecordInfo
from offload.records.record.titles import words_of_query
from offload.records.session.reader import SessionReader
from offload.records.session.titles import find_titles, with_titles

_SHOWN, _SHOWN_ROWS = 20, 400
_MARKS = {"-": "del", "+": "ins", "@": "hunk", " ": ""}


def older_versions(reader: SessionReader, info: RecordInfo) -> list[RecordInfo]:
    """Return the records of the same source that are older, newest first; none without a title."""
    [info] = with_titles(reader, [info])
    if not info.title:
        return []
    found = find_titles(
        reader,
        words_of_query(info.title),
        item_type=info.item_type,
        tool=info.tool_name,
        limit=_SHOWN,
        after=info.ref,
    )
    return [old for old in found.infos if (old.title, old.tool_name) == (info.title, info.tool_name)]


def changes(reader: SessionReader, info: RecordInfo, old_ref: str, start: int) -> dict[str, Any]:
    """Return for a template the diff from an older version to this record, from row `start`.

    Args:
        reader: the session.
        info: the newer record.
        old_ref: the older one; "" for the last version before.
        start: the number of rows to skip.

    Raises:
        ConfigError: the records are too large or too different.
        CorruptError: one of them is damaged.
        NotFoundError: `old_ref` is not an older version.
    """
    versions = older_versions(reader, info)
    old = next((each for each in versions if old_ref in ("", each.ref)), None)
    if old is None and old_ref:
        raise NotFoundError(f"record {old_ref[:40]!r} is not an older version of {info.ref!r}")
    values = {"versions": versions, "old": old}
    return (
        values
        if old is None
        else values | _diff(reader.read(old.ref).content, reader.read(info.ref).content, start)
    )


def _diff(old: StoredContent, new: StoredContent, start: int) -> dict[str, Any]:
    diff = Diff(old, new)
    rows = list(islice(diff.rows(), start, start + _SHOWN_ROWS + 1))
    texts = [row_text(row, old, new) for row in rows[:_SHOWN_ROWS]]
    return {
        "summary": str(diff),
        "rows": [(_MARKS[text[0]], text) for text in texts],
        "next": start + _SHOWN_ROWS if len(rows) > _SHOWN_ROWS else None,
    }
