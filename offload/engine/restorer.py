"""Restoring messages: each placeholder is replaced only if a record says that it is one (rule R6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class _Claim(NamedTuple):
    """A text that looks like a placeholder, in message `message`, and the ref that it names."""

    message: int
    item: Item
    ref: str


class _Original(NamedTuple):
    """The text of an offloaded item, and the form that it had in its message."""

    text: str
    form: str | None


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
        claims, missing = self._claims(messages)
        for claim, original in zip(claims, self._resolve(claims), strict=True):
            if isinstance(original, OffloadError):
                missing.append(Missing(claim.message, claim.item.block, claim.ref, original))
            elif original is not None:
                restored[claim.message] = claim.item.restore_in(restored[claim.message], *original)
        restored.missing = sorted(missing, key=lambda m: m.message)
        if restored.missing and not keeps_missing:
            raise self._unresolved(restored)
        return restored

    def _claims(self, messages: Sequence[Any]) -> tuple[list[_Claim], list[Missing]]:
        claims, missing = list[_Claim](), list[Missing]()
        for index, item in _items(messages):
            try:
                ref = self._recognition.claim(item.text)
            except OffloadError as error:
                missing.append(Missing(index, item.block, "", error))
            else:
                if ref is not None:
                    claims.append(_Claim(index, item, ref))
        return claims, missing

    def _resolve(self, claims: Sequence[_Claim]) -> list[_Original | OffloadError | None]:
        """Return the original of each claim, why it cannot be read, or None if the claim is just text."""
        if not claims:
            return []
        try:
            # Another writer may have stored a known item under another key as well.
            self._session.catalog.load()
        except StoreError as error:
            return [None if self._recognition.is_plain(claim.item) else error for claim in claims]
        originals = self._load(claims)
        for index, claim in enumerate(claims):
            if index not in originals:
                originals[index] = self._session.missing(claim.ref)
        return [self._or_text(claim, originals[index]) for index, claim in enumerate(claims)]

    def _load(self, claims: Sequence[_Claim]) -> dict[int, _Original | OffloadError]:
        """Read the headers of the claimed records; load the contents of those that prove a claim."""
        originals: dict[int, _Original | OffloadError] = {}
        by_ref: dict[str, list[int]] = {}
        for index, claim in enumerate(claims):
            by_ref.setdefault(claim.ref, []).append(index)
        infos = candidates(self._session, ((claim.ref, claim.item) for claim in claims))
        for info, record in self._session.open_many(infos):
            original: _Original | OffloadError | None = None
            for index in by_ref[info.ref]:
                item = claims[index].item
                if isinstance(originals.get(index), _Original) or item.item_type != info.item_type:
                    continue
                if isinstance(record, OffloadError):
                    originals.setdefault(index, record)
                elif stands_for(record.header, item):
                    original = original or self._original(info, record)
                    originals[index] = original
                else:
                    other = NotFoundError(f"record {info.ref!r} has another placeholder")
                    originals.setdefault(index, other)
        return originals

    def _original(self, info: RecordInfo, record: StoredRecord) -> _Original | OffloadError:
        try:
            header, content = self._session.load(info, record)
        except OffloadError as error:
            return error
        return _Original(decode_text(content), header.form)

    def _or_text(self, claim: _Claim, original: _Original | OffloadError) -> _Original | OffloadError | None:
        """Return None for a failed claim if the text needs no record or a record proves that it is text."""
        is_failed = isinstance(original, OffloadError)
        if is_failed and (self._recognition.is_plain(claim.item) or self._is_proven_text(claim.item)):
            return None
        return original

    def _is_proven_text(self, item: Item) -> bool:
        """Return whether a record proves that a look-alike of a placeholder is just text."""
        chars = len(item.text)
        alike = [
            i for i in self._session.catalog.entries() if (i.item_type, i.chars) == (item.item_type, chars)
        ]
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
