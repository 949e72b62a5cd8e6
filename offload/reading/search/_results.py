"""The result of a search, and the reasons why a record was not searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offload.errors import CorruptError, EncryptionError, NotFoundError, OffloadError


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a record's text.

    Attributes:
        session: the session that was searched.
        ref: the id of the record.
        title: the title of the record, such as a path; the tool's name or the item type if it has none.
        start: offset of the first character, from 0.
        start_line: the first line, from 1.
        end_line: the last line, inclusive.
        text: the text as stored, at most 1,200 characters.
        score: how well it fits the query, by BM25; only to compare passages of one result.
        is_redacted: whether parts of the record were removed before storage.
    """

    session: str
    ref: str
    title: str
    start: int
    start_line: int
    end_line: int
    text: str
    score: float
    is_redacted: bool = False

    @property
    def next_call(self) -> str:
        """The call of a retrieval tool that reads the record from the passage onwards."""
        return f'context_read(id="{self.ref}", offset={self.start})'


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The passages that fit a query best, and what was searched.

    Attributes:
        passages: the best first.
        records: the number of records whose text was searched.
        chars: the number of characters that were searched.
        unsearched: by the id of a record, why its text was not searched completely.
    """

    passages: list[Passage]
    records: int
    chars: int
    unsearched: Mapping[str, str] = field(default_factory=dict)


FAILED, DAMAGED, DELETED = "the store failed", "damaged", "deleted"
# These may have passed by the next search: a record that another session shares can be undeleted.
PASSING = (FAILED, DELETED)


def reason_of(error: OffloadError) -> str:
    """Return the reason for the error of a read."""
    if isinstance(error, EncryptionError):
        return str(error)
    if isinstance(error, CorruptError):
        return DAMAGED
    return DELETED if isinstance(error, NotFoundError) else FAILED
