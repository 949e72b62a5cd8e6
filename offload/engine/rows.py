"""The rows of a record of removed messages: one per line, as JSON, with its place in the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from offload.errors import CorruptError, MessageError
from offload.messages import from_json, to_json
from offload.messages.stored import map_texts, without_json

_T = TypeVar("_T")


class RemovedMessage(NamedTuple):
    """A removed message, and its index in the conversation before the compaction."""

    at: int
    message: Any

    def line(self, edit: Callable[[str], str] | None = None) -> str:
        """Return the row as a line, with `edit` applied to each text of the message.

        Raises `MessageError` if JSON cannot restore the message exactly.
        """
        return encode_row({"at": self.at, "message": self.message}, edit)


def encode_row(row: dict[str, Any], edit: Callable[[str], str] | None = None) -> str:
    """Return a row as a line of JSON, with `edit` applied to each text in it.

    Raises `MessageError` if JSON cannot restore it exactly.
    """
    try:
        data = to_json(row, is_exact=True)
        line = json.dumps(data, ensure_ascii=False)
        # The marks of tuples and NaN are compared, since NaN equals none.
        is_whole = to_json(json.loads(line, object_hook=from_json), is_exact=True) == data
    except (MessageError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        where, value = (f"messages[{row['at']}]", row["message"]) if "at" in row else ("thinking", row)
        problem = next(without_json(value, where), f"{where}: JSON cannot restore it exactly")
        raise MessageError(f"{problem}, so the message cannot be stored")
    return line if edit is None else json.dumps(map_texts(data, edit), ensure_ascii=False)


def read_rows(content: str) -> list[RemovedMessage]:
    """Return the rows in the content of a record. Raises `CorruptError` if it has others."""
    return decode_rows(content, "messages", lambda row: RemovedMessage(int(row["at"]), row["message"]))


def decode_rows(content: str, kind: str, build: Callable[[Any], _T]) -> list[_T]:
    """Return what `build` makes of each row that `encode_row` wrote. Raises `CorruptError` if it cannot."""
    try:
        return [build(json.loads(line, object_hook=from_json)) for line in content.split("\n")]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptError(f"a record of removed {kind} has an invalid line: {error!r:.80}") from error


def put_back(kept: Sequence[_T], rows: Sequence[tuple[int, _T]]) -> list[_T]:
    """Return the messages of `rows`, each with its index, at their places from the first on.

    The messages `kept` after the notice take all other places. Messages that were added before the notice
    since, such as system messages, do not change the distances between them.
    """
    first = rows[0][0]
    out: list[_T] = []
    used = 0
    for at, message in rows:
        others = kept[used : used + max(0, at - first - len(out))]
        out += [*others, message]
        used += len(others)
    return [*out, *kept[used:]]
