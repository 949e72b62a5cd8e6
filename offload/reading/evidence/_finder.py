"""The state of a value: where messages and records have it, the strongest place first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from offload.reading.evidence._forms import Spellings, spellings_of
from offload.reading.evidence._records import Records, RecordText
from offload.reading.evidence._requests import MessageText, Requests, ShownMessage, TextRole
from offload.reading.evidence._results import Value, ValueState
from offload.reading.evidence._texts import TextPart
from offload.reading.evidence._values import Stated
from offload.records.record import RecordInfo

UnitT = TypeVar("UnitT")


class _Occurrence(NamedTuple):
    """The place of a value: its message or record, and its line there."""

    unit: Any
    line: int


class Finder:
    """Finds values in the texts of a session.

    Args:
        requests: the requests; the last one is the view. None if they are not known.
        records: the texts of the records.
        infos: the entries of the records, oldest first.
        has_journal: whether these are all requests of the session.
        is_whole: whether all texts of the session were read.
    """

    def __init__(
        self,
        requests: Requests | None,
        records: Records,
        infos: Iterable[RecordInfo],
        *,
        has_journal: bool,
        is_whole: bool,
    ) -> None:
        self._requests, self._records = requests, records
        self._order = {info.key: number for number, info in enumerate(infos)}
        self._number = 0 if requests is None else requests.number
        self._indexes: dict[ShownMessage, int] = {} if requests is None else requests.places()
        self._has_journal, self._is_whole = has_journal, is_whole

    def find(self, value: Stated) -> Value:
        """Return a value with its state and its place."""
        spellings = spellings_of(value)
        shown = [] if self._requests is None else [*self._requests.texts.parts(spellings)]
        now = [part for part in shown if part.unit.message.count]
        if found := self._shown(spellings, now, "message"):
            # A record has all that its placeholder shows.
            record = self._stored(spellings, "message") if found.unit.message.has_refs else None
            return self._value(value, "in_view", found, record)
        if found := self._shown(spellings, now, "read_back"):
            return self._value(value, "read_back", found, self._stored(spellings, "message"))
        before = [part for part in shown if not part.unit.message.count]
        earlier = self._shown(spellings, before, "message") or self._shown(spellings, before, "read_back")
        record = self._stored(spellings, "message")
        if earlier or record:
            # A notice is not a source, but shows what its sources have.
            if notice := self._shown(spellings, now, "notice"):
                return self._value(value, "in_view", notice, record)
            only_stored: ValueState = "hidden" if self._has_journal else "unknown"
            return self._value(value, "shown" if earlier else only_stored, earlier, record)
        call, record = self._shown(spellings, shown, "call"), self._stored(spellings, "call")
        if call or record:
            return self._value(value, "called", call, record)
        is_known = self._requests is not None and self._is_whole
        return self._value(value, "not_found" if is_known else "unknown", None, None)

    def _shown(
        self, spellings: Spellings, parts: Iterable[TextPart[MessageText]], role: TextRole
    ) -> _Occurrence | None:
        """Return the latest message in which a text of a role has a value."""
        return _first(spellings, (part for part in parts if part.unit.role == role), self._age)

    def _stored(self, spellings: Spellings, role: TextRole) -> _Occurrence | None:
        """Return the oldest record that has a value in a text of a role."""
        parts = (part for part in self._records.texts.parts(spellings) if part.unit.role == role)
        return _first(spellings, parts, lambda unit: self._order[unit.info.key])

    def _age(self, unit: MessageText) -> tuple[int, int]:
        request, index = self._place(unit.message)
        return -request, -index

    def _place(self, message: ShownMessage) -> tuple[int, int]:
        """Return the number of the last request with a message, and its index there."""
        return (self._number, self._indexes[message]) if message.count else (message.request, message.index)

    def _value(
        self, value: Stated, state: ValueState, shown: _Occurrence | None, record: _Occurrence | None
    ) -> Value:
        request, index = (None, None) if shown is None else self._place(shown.unit.message)
        source = record or shown
        return Value(
            value.text,
            value.start,
            value.kind,
            state,
            ref=None if record is None else record.unit.info.ref,
            line=None if source is None else source.line,
            request=request if self._has_journal else None,
            message=index,
        )


def _first(
    spellings: Spellings, parts: Iterable[TextPart[UnitT]], order: Callable[[UnitT], Any]
) -> _Occurrence | None:
    """Return the first place of a value in parts of texts, in an order of what they are of."""
    for part in sorted(parts, key=lambda part: (order(part.unit), part.start)):
        at = part.find(spellings)
        if at is not None:
            line = part.unit.line if isinstance(part.unit, RecordText) else None
            return _Occurrence(part.unit, part.text.count("\n", 0, at) + 1 if line is None else line)
    return None
