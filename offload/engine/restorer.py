"""Restoring messages: each placeholder is replaced only if a record says that it is one (rule R6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from offload.codec import StoredRecord
from offload.engine.recognition import Recognition, candidates, stands_for
from offload.engine.results import Missing, Restored
from offload.errors import CorruptError, ExpiredError, NotFoundError, OffloadError, StoreError
from offload.messages import Item, scan_of
from offload.record import RecordInfo, decode_text
from offload.session import Session

# Number of placeholders that an error names; `missing` lists all of them.
_NAMED = 5


class _Original(NamedTuple):
    """The text of an offloaded item, and the form that it had in its message."""

    text: str
    form: str | None


@dataclass(slots=True, eq=False)
class _Claim:
    """A text in message `message` that looks like a placeholder, and the ref that it names.

    Its original is None while it is unknown, and if it is just text; or why it cannot be read.
    """

    message: int
    item: Item
    ref: str = ""
    original: _Original | OffloadError | None = None


class Restorer:
    """Restores messages from the records of one session."""

    def __init__(self, session: Session, recognition: Recognition) -> None:
        self._session = session
        self._recognition = recognition

    def restore(self, messages: Sequence[Any], *, keeps_missing: bool) -> Restored:
        """Return `messages` with each placeholder replaced by its item; the others are the same objects.

        Raises:
            OffloadError: a placeholder cannot be restored and `keeps_missing` is false; the error has
                `messages` and `missing`.
        """
        restored = Restored(messages)
        claims = [_Claim(index, item) for index, item in _items(messages)]
        self._resolve([claim for claim in claims if self._names_ref(claim)])
        for claim in claims:
            original = claim.original
            if isinstance(original, OffloadError):
                restored.missing.append(Missing(claim.message, claim.item.block, claim.ref, original))
            elif original is not None:
                restored[claim.message] = claim.item.restore_in(restored[claim.message], *original)
        if restored.missing and not keeps_missing:
            raise self._unresolved(restored)
        return restored

    def _names_ref(self, claim: _Claim) -> bool:
        """Look for the ref in the text of a claim; return whether it names one."""
        try:
            claim.ref = self._recognition.claim(claim.item.text) or ""
        except OffloadError as error:
            claim.original = error
        return bool(claim.ref)

    def _resolve(self, claims: Sequence[_Claim]) -> None:
        """Find the original of each claim, or why it cannot be read."""
        if not claims:
            return
        try:
            # Another writer may have stored a known item under another key as well.
            self._session.catalog.load()
        except StoreError as error:
            for claim in claims:
                claim.original = None if self._recognition.is_plain(claim.item) else error
            return
        self._load(claims)
        for claim in claims:
            claim.original = claim.original or self._session.missing(claim.ref)
            if isinstance(claim.original, OffloadError) and self._is_text(claim.item):
                claim.original = None

    def _load(self, claims: Sequence[_Claim]) -> None:
        """Read the headers of the claimed records; load the contents of those that prove a claim."""
        by_ref: dict[str, list[_Claim]] = {}
        for claim in claims:
            by_ref.setdefault(claim.ref, []).append(claim)
        infos = candidates(self._session, ((claim.ref, claim.item) for claim in claims))
        for info, record in self._session.open_many(infos):
            original: _Original | OffloadError | None = None
            for claim in by_ref[info.ref]:
                if isinstance(claim.original, _Original) or claim.item.item_type != info.item_type:
                    continue
                if isinstance(record, OffloadError):
                    claim.original = claim.original or record
                elif stands_for(record.header, claim.item):
                    claim.original = original = original or self._original(info, record)
                else:
                    other = NotFoundError(f"record {info.ref!r} has another placeholder")
                    claim.original = claim.original or other

    def _original(self, info: RecordInfo, record: StoredRecord) -> _Original | OffloadError:
        try:
            header, content = self._session.load(info, record)
        except OffloadError as error:
            return error
        return _Original(decode_text(content), header.form)

    def _is_text(self, item: Item) -> bool:
        """Return whether a look-alike needs no record, or a record proves that it is just text."""
        if self._recognition.is_plain(item):
            return True
        kind = (item.item_type, len(item.text))
        alike = [i for i in self._session.catalog.entries() if (i.item_type, i.chars) == kind]
        opened = (record for _, record in self._session.open_many(alike))
        return any(not isinstance(r, OffloadError) and stands_for(r.header, item) for r in opened)

    def _unresolved(self, restored: Restored) -> OffloadError:
        """Return the error that names the placeholders that remain, the session and the store."""
        missing = restored.missing
        named = "; ".join(f"messages[{m.message}] {m.ref}: {m.error}" for m in missing[:_NAMED])
        more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        count = "a placeholder" if len(missing) == 1 else f"{len(missing)} placeholders"
        place = f"session {self._session.name!r} of {self._session.store.url}"
        text = f"{count} cannot be restored from {place}: {named}{more}"
        if self._session.catalog.is_empty:
            text += (
                ". The session has no records: is it another session or store? "
                "Use share() or fork() to restore placeholders of another session"
            )
        error = _combined([m.error for m in missing], text)
        error.messages, error.missing = list(restored), missing
        return error


def _items(messages: Sequence[Any]) -> Iterator[tuple[int, Item]]:
    """Yield every item with the index of its message, except results that code reads."""
    code_calls = set[str]()
    for index, message in enumerate(messages):
        scan = scan_of(message)
        code_calls |= scan.code_calls
        for item in scan.offloadable:
            if item.tool_use_id not in code_calls:
                yield index, item


def _combined(causes: Sequence[OffloadError], text: str) -> OffloadError:
    """Return an error whose type suggests the fix: retry, restore a backup, open another session."""
    for kind in (StoreError, CorruptError):
        for cause in causes:
            if isinstance(cause, kind):
                return _caused(type(cause)(text), cause)
    first = causes[0]
    if isinstance(first, ExpiredError) and all(isinstance(cause, ExpiredError) for cause in causes):
        return _caused(ExpiredError(text, first.reason, first.at), first)
    return _caused(NotFoundError(text), first)


def _caused(error: OffloadError, cause: OffloadError) -> OffloadError:
    error.__cause__ = cause
    return error
