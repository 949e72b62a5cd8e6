"""Putting back what placeholders stand for, each only where its record says so (rule R6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from offload.codec import StoredRecord
from offload.engine.recognition import Recognition, candidates, stands_for
from offload.engine.results import Missing, Restored
from offload.errors import CorruptError, ExpiredError, NotFoundError, OffloadError, StoreError
from offload.messages import Item, scan_of
from offload.record import RecordInfo, decode_text
from offload.session import Session

# So many placeholders an error names; `missing` has all of them.
_NAMED = 5


class _Claim(NamedTuple):
    """A text that looks like a placeholder: the index of its message, its item, and the ref that it names."""

    message: int
    item: Item
    ref: str


class _Content(NamedTuple):
    """What an item was: its text and the form in which it stood."""

    text: str
    form: str | None


class Restorer:
    """Restores messages from the records of one session.

    Args:
        session: the records.
        recognition: finds what looks like a placeholder.
    """

    def __init__(self, session: Session, recognition: Recognition) -> None:
        self._session = session
        self._recognition = recognition

    def restore(self, messages: Sequence[Any], *, keeps_missing: bool) -> Restored:
        """Return `messages` with each placeholder replaced by its item; all others are the same objects.

        Raises an error with `messages` and `missing` if one cannot be resolved and is not to be kept.
        """
        restored, missing = Restored(messages), list[Missing]()
        claims = list[_Claim]()
        code_calls = set[str]()
        for index, message in enumerate(messages):
            scan = scan_of(message)
            code_calls |= scan.code_calls
            for item in scan.offloadable:
                if item.tool_use_id not in code_calls:
                    self._claim(index, item, claims, missing)
        for claim, found in zip(claims, self._resolve(claims), strict=True):
            if isinstance(found, OffloadError):
                missing.append(Missing(claim.message, claim.item.block, claim.ref, found))
            elif found is not None:
                message = restored[claim.message]
                restored[claim.message] = claim.item.restore_in(message, found.text, found.form)
        restored.missing = sorted(missing, key=lambda m: m.message)
        if restored.missing and not keeps_missing:
            raise self._unresolved(restored)
        return restored

    def _claim(self, index: int, item: Item, claims: list[_Claim], missing: list[Missing]) -> None:
        try:
            ref = self._recognition.claim(item)
        except OffloadError as error:
            missing.append(Missing(index, item.block, "", error))
            return
        if ref is not None:
            claims.append(_Claim(index, item, ref))

    def _resolve(self, claims: Sequence[_Claim]) -> list[_Content | OffloadError | None]:
        """Return for each claim what it stands for, why that cannot be told, or None if it is just text."""
        if not claims:
            return []
        try:
            # Another writer may have stored an item that is known here under another key as well.
            self._session.catalog.load()
        except StoreError as error:
            return [None if self._recognition.is_plain(claim.item) else error for claim in claims]
        found: dict[int, _Content | OffloadError] = {}
        self._load(claims, found)
        for number, claim in enumerate(claims):
            if number not in found:
                found[number] = self._session.missing(claim.ref)
        return [self._settled(claim, found[number]) for number, claim in enumerate(claims)]

    def _load(self, claims: Sequence[_Claim], found: dict[int, _Content | OffloadError]) -> None:
        """Read the headers of what claims name; load what stands for one of them and nothing else."""
        by_ref: dict[str, list[int]] = {}
        for number, claim in enumerate(claims):
            by_ref.setdefault(claim.ref, []).append(number)
        infos = candidates(self._session, ((claim.ref, claim.item) for claim in claims))
        for info, record in self._session.open_many(infos):
            content: _Content | OffloadError | None = None
            for number in by_ref[info.ref]:
                item = claims[number].item
                if isinstance(found.get(number), _Content) or item.item_type != info.item_type:
                    continue
                if isinstance(record, OffloadError):
                    found.setdefault(number, record)
                elif stands_for(record.header, item):
                    if content is None:
                        content = self._content(info, record)
                    found[number] = content
                else:
                    found.setdefault(number, NotFoundError(f"record {info.ref!r} stands for another text"))

    def _content(self, info: RecordInfo, record: StoredRecord) -> _Content | OffloadError:
        try:
            header, content = self._session.load_opened(info, record)
        except OffloadError as error:
            return error
        return _Content(decode_text(content), header.form)

    def _settled(self, claim: _Claim, found: _Content | OffloadError) -> _Content | OffloadError | None:
        if isinstance(found, OffloadError) and (
            self._recognition.is_plain(claim.item) or self._is_vouched_for(claim.item)
        ):
            return None
        return found

    def _is_vouched_for(self, item: Item) -> bool:
        """Tell whether a record says of a text that looks like a placeholder that it is none."""
        chars = len(item.text)
        alike = [
            i for i in self._session.catalog.entries() if (i.item_type, i.chars) == (item.item_type, chars)
        ]
        opened = (record for _, record in self._session.open_many(alike))
        return any(not isinstance(r, OffloadError) and stands_for(r.header, item) for r in opened)

    def _unresolved(self, restored: Restored) -> OffloadError:
        """Return the error that says which placeholders stand in a list still, and where they were sought."""
        missing = restored.missing
        named = "; ".join(f"messages[{m.message}] {m.ref}: {m.error}" for m in missing[:_NAMED])
        more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        number = "a placeholder" if len(missing) == 1 else f"{len(missing)} placeholders"
        place = f"session {self._session.name!r} of {self._session.store.url}"
        said = f"{number} cannot be restored from {place}: {named}{more}"
        if self._session.catalog.is_empty:
            said += (
                ". The session holds no record: is it another session or store? "
                "What another session handed over resolves after share() or fork() there"
            )
        error = _like([m.error for m in missing], said)
        error.messages, error.missing = list(restored), missing
        return error


def _like(causes: Sequence[OffloadError], said: str) -> OffloadError:
    """Return an error of the kind that tells what to do: wait, restore a backup, look elsewhere."""
    for kind in (StoreError, CorruptError):
        for cause in causes:
            if isinstance(cause, kind):
                return _caused(type(cause)(said), cause)
    first = causes[0]
    if isinstance(first, ExpiredError) and all(isinstance(c, ExpiredError) for c in causes):
        return _caused(ExpiredError(said, first.reason, first.at), first)
    return _caused(NotFoundError(said), first)


def _caused(error: OffloadError, cause: OffloadError) -> OffloadError:
    error.__cause__ = cause
    return error
