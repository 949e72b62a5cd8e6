"""Restoring messages: each placeholder and notice is undone only if a record proves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from offload.base.text import decode_text, encode_text
from offload.engine.failures import malformed
from offload.engine.placeholder.notice import NOTICE_TOOL, notice_number
from offload.engine.recognition import Claim, ProofKey, Recognition, named_records, stands_for
from offload.engine.removed import RemovedThinking
from offload.engine.results import Missing, Restored
from offload.engine.rows import RemovedMessage, put_back, read_rows
from offload.errors import (
    CorruptError,
    ExpiredError,
    MessageError,
    NotFoundError,
    OffloadError,
    StoreError,
    result_or_error,
)
from offload.messages.base import BlockIndex, Item
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for, role_or_none, scan_of
from offload.records.codec.base import StoredRecord
from offload.records.record import Header, RecordInfo
from offload.records.session import Session

# Number of placeholders that an error names; `missing` lists all of them.
_NAMED = 5


class _Original(NamedTuple):
    """The text of a stored item, and the header of its record."""

    text: str
    header: Header


# None if the text is just text, or why it cannot be undone.
_Resolution = _Original | OffloadError | None


class _ProvenNotice(NamedTuple):
    """The messages that a proven notice replaces; of several notices the latest is undone first."""

    number: int
    created_at: float
    ref: str
    rows: list[RemovedMessage]
    block: BlockIndex


class _RestoreState(msgspec.Struct, eq=False):
    """A message of the list.

    Attributes:
        missing: the blocks of its texts that cannot be undone, with the refs in them and the reasons.
        notice: the messages that it replaces, if it is a notice.
        undone: its texts that were undone; `contents` has the texts that took their place.
        above: the refs of the notices that it came from.
    """

    message: Any
    above: frozenset[str] = frozenset()
    missing: list[tuple[BlockIndex, str, OffloadError]] = msgspec.field(default_factory=list)
    notice: _ProvenNotice | None = None
    undone: set[str] = msgspec.field(default_factory=set)
    contents: set[str] = msgspec.field(default_factory=set)


def restore(
    recognition: Recognition, thinking: RemovedThinking, messages: Sequence[Any], *, keeps_missing: bool
) -> Restored:
    """Return `messages` with each placeholder and notice undone, and the thinking that was removed.

    Others are the same objects.

    Raises:
        OffloadError: one of them cannot be undone and `keeps_missing` is false; the error has
            `messages` and `missing`.
    """
    undoing = _Undoing(recognition)
    states = result_or_error(undoing.undo, messages)
    if isinstance(states, OffloadError):
        states = [_RestoreState(message, missing=[(None, "", states)]) for message in messages]
    restored = Restored([state.message for state in states])
    whole = result_or_error(_with_thinking, undoing, thinking, restored)
    if not isinstance(whole, OffloadError):
        restored[:] = whole
    restored.missing.extend(
        Missing(index, block, ref, error)
        for index, state in enumerate(states)
        for block, ref, error in state.missing
    )
    # A store that cannot be read is reported once.
    if isinstance(whole, OffloadError) and not restored.missing:
        restored.missing.append(Missing(0, None, "", whole))
    if restored.missing and not keeps_missing:
        raise _unresolved(recognition.session, restored)
    return restored


def _with_thinking(undoing: _Undoing, thinking: RemovedThinking, messages: Sequence[Any]) -> list[Any]:
    """Return restored messages with the thinking that any process removed.

    Raises `OffloadError` if it cannot be read.
    """
    if any(role_or_none(message) == "assistant" for message in messages):
        undoing.list_records()
        thinking.load()
    return thinking.restored(messages)


def _unresolved(session: Session, restored: Restored) -> OffloadError:
    """Return the error that names the placeholders that remain, the session and the store."""
    missing = restored.missing
    named = "; ".join(f"messages[{m.message}] {m.ref}: {m.error}" for m in missing[:_NAMED])
    more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    count = "a placeholder" if len(missing) == 1 else f"{len(missing)} placeholders"
    place = f"session {session.name!r} of {session.store.url}"
    text = f"{count} cannot be restored from {place}: {named}{more}"
    # An expired record, or a store that cannot be read, says enough.
    if session.catalog.is_empty and all(m.error.kind == NotFoundError.kind for m in missing):
        text += (
            ". The session has no records: is it another session or store? "
            "Use share() or fork() to restore placeholders of another session"
        )
    error = _combined([m.error for m in missing], text)
    error.messages, error.missing = list(restored), missing
    return error


def undone(recognition: Recognition, messages: Sequence[Any]) -> list[list[Any]]:
    """Return each message restored, except its thinking; a notice is several.

    Raises `OffloadError` if one could not be looked at, or a record not be read.
    """
    undoing = _Undoing(recognition)
    found = [undoing.undo([message]) for message in messages]
    errors = (error for states in found for state in states for _, _, error in state.missing)
    for error in errors:
        if isinstance(error, StoreError) or type(error) is OffloadError:
            raise error
    return [[state.message for state in states] for states in found]


class _Undoing:
    """One call of `restore`: what it has read, and the calls whose results code reads."""

    def __init__(self, recognition: Recognition) -> None:
        self._session = recognition.session
        self._recognition = recognition
        self._outcomes: dict[ProofKey, _Resolution] = {}
        self._code_calls = set[str]()
        self._is_listed = False

    def list_records(self) -> None:
        """Read the listing of the session, once. Raises `StoreError`."""
        if not self._is_listed:
            # Another writer may have stored a known item under another key as well.
            self._session.catalog.load()
            self._is_listed = True

    def undo(self, messages: Sequence[Any]) -> list[_RestoreState]:
        """Return the messages with each placeholder and notice undone."""
        states = [_RestoreState(message) for message in messages]
        self.open(states)
        while notices := [(state.notice, state) for state in states if state.notice is not None]:
            notice, state = max(notices, key=lambda pair: pair[0][:2])
            expanded = result_or_error(self.expand, notice, state, states)
            if isinstance(expanded, OffloadError):
                state.notice = None
                state.missing.append((None, notice.ref, expanded))
            else:
                states = expanded
        return states

    def open(self, states: Sequence[_RestoreState]) -> None:
        """Undo the placeholders in messages, then those in the texts that took their place; read notices."""
        while states:
            claims: list[tuple[_RestoreState, Item, Claim, ProofKey]] = []
            for state in states:
                found = result_or_error(self._claims, state)
                if isinstance(found, OffloadError):
                    state.missing.append((None, "", found))
                else:
                    claims += found
            self._resolve({key: (item, claim) for _, item, claim, key in claims})
            changed = []
            for state, item, claim, key in claims:
                is_changed = result_or_error(self._undo, state, item, claim, self._outcomes[key])
                if isinstance(is_changed, OffloadError):
                    state.missing.append((item.block, claim.refs[0], is_changed))
                elif is_changed:
                    changed.append(state)
            states = list(dict.fromkeys(changed))

    def expand(
        self, notice: _ProvenNotice, state: _RestoreState, states: list[_RestoreState]
    ) -> list[_RestoreState]:
        """Return `states` with the messages of `notice`, opened, in place of `state`."""
        above = state.above | {notice.ref}
        rows = [(row.at, _RestoreState(row.message, above)) for row in notice.rows]
        self.open([row for _, row in rows])
        at = states.index(state)
        before, after = self._around(state, notice.block)
        return [*states[:at], *before, *put_back([*after, *states[at + 1 :]], rows)]

    def _around(
        self, state: _RestoreState, block: BlockIndex
    ) -> tuple[list[_RestoreState], list[_RestoreState]]:
        """Return the messages before and after the notice at `block` that were joined with it."""
        parts = adapter_for(state.message).split(state.message, block)
        own = 0 if block is None or len(parts) == 1 or block == 0 else 1
        states = [
            _RestoreState(part, state.above, undone=state.undone, contents=state.contents)
            for part in [*parts[:own], *parts[own + 1 :]]
        ]
        self.open(states)
        return states[:own], states[own:]

    def _claims(self, state: _RestoreState) -> list[tuple[_RestoreState, Item, Claim, ProofKey]]:
        """Return the items of a message that look like placeholders, except results that code reads.

        The content of a record is none: a copy of a placeholder is offloaded like any other text.
        """
        state.missing.clear()
        try:
            scan = adapter_for(state.message).scan(state.message, "message", Calls())
        except MessageError:
            return []
        state.missing += [(None, "", malformed(error, where)) for where, error in scan.failed]
        self._code_calls |= scan.code_calls
        found = []
        for item in scan.offloadable:
            if item.tool_use_id in self._code_calls or item.text in state.undone:
                continue
            claim = result_or_error(self._claim, item)
            if isinstance(claim, OffloadError):
                state.missing.append((item.block, "", claim))
            elif claim is not None and (claim[0].is_notice or item.text not in state.contents):
                found.append((state, item, *claim))
        return found

    def _claim(self, item: Item) -> tuple[Claim, ProofKey] | None:
        claim = self._recognition.claim(item)
        return None if claim is None else (claim, ProofKey.of(item))

    def _undo(self, state: _RestoreState, item: Item, claim: Claim, outcome: _Resolution) -> bool:
        """Undo one text; return whether the message changed."""
        if isinstance(outcome, OffloadError):
            # A look-alike was offloaded like any other text.
            is_content = item.text in state.contents and isinstance(outcome, NotFoundError)
            if not is_content or self._was_deleted(item, claim):
                state.missing.append((item.block, claim.refs[0], outcome))
            return False
        if outcome is None or outcome.text == item.text:
            return False
        if claim.is_notice and outcome.header.tool_name == NOTICE_TOOL:
            self._read_notice(state, item, outcome)
            return False
        header = outcome.header
        form = header.order or header.form
        state.message = item.restore_in(state.message, outcome.text, form, header.marked)
        state.undone.add(item.text)
        state.contents.add(outcome.text)
        return True

    def _read_notice(self, state: _RestoreState, item: Item, original: _Original) -> None:
        ref = original.header.ref
        try:
            parts = adapter_for(state.message).split(state.message, item.block)
            if len(parts) == 1 and len(scan_of(state.message).offloadable) > 1:
                raise MessageError(
                    "the notice shares its message with other content; pass it in a message of its own"
                )
            if ref in state.above:
                raise CorruptError(f"record {ref} contains its own notice")
            rows = read_rows(original.text)
        except OffloadError as error:
            state.missing.append((item.block, ref, error))
        else:
            number = notice_number(item.text)
            notice = _ProvenNotice(number, original.header.created_at, ref, rows, item.block)
            if state.notice is None or state.notice[:2] <= notice[:2]:
                state.notice = notice

    def _resolve(self, claims: Mapping[ProofKey, tuple[Item, Claim]]) -> None:
        """Find the outcome of each new claim: the listing is read once, each record once."""
        unknown = {key: claims[key] for key in claims.keys() - self._outcomes.keys()}
        if not unknown:
            return
        found = result_or_error(self._read, unknown)
        if isinstance(found, OffloadError):
            for key, (item, _) in unknown.items():
                self._outcomes[key] = None if self._recognition.is_plain(item) else found
            return
        for key, (item, claim) in unknown.items():
            self._outcomes[key] = result_or_error(self._outcome, item, claim, found.get(key))

    def _outcome(self, item: Item, claim: Claim, found: _Resolution) -> _Resolution:
        """Return the outcome of a claim, given what its record says."""
        outcome = found or self._lost(item, claim)
        is_failed = isinstance(outcome, OffloadError)
        return None if is_failed and self._is_text(item, claim, outcome) else outcome

    def _read(self, claims: Mapping[ProofKey, tuple[Item, Claim]]) -> dict[ProofKey, _Resolution]:
        """Read the headers of the claimed records, and the contents of those that prove a claim."""
        self.list_records()
        by_ref: dict[str, list[ProofKey]] = {}
        for key, (_, claim) in claims.items():
            for ref in claim.refs:
                by_ref.setdefault(ref, []).append(key)
        infos = named_records(self._session, claims.values())
        with self._session.holding_quoted(infos):
            return self._read_all(claims, by_ref, infos)

    def _read_all(
        self,
        claims: Mapping[ProofKey, tuple[Item, Claim]],
        by_ref: Mapping[str, Sequence[ProofKey]],
        infos: Sequence[RecordInfo],
    ) -> dict[ProofKey, _Resolution]:
        found: dict[ProofKey, _Resolution] = {}
        for info, record in self._session.open_many(infos):
            original: _Resolution = None
            for key in by_ref[info.ref]:
                item, _ = claims[key]
                if isinstance(found.get(key), _Original) or item.item_type != info.item_type:
                    continue
                proven = result_or_error(_proving, record, item)
                if isinstance(proven, OffloadError):
                    found[key] = _worse(found.get(key), proven)
                else:
                    found[key] = original = original or result_or_error(self._original, info, proven)
        return found

    def _original(self, info: RecordInfo, record: StoredRecord) -> _Original:
        header, content = self._session.load(info, record)
        return _Original(decode_text(content), header)

    def _lost(self, item: Item, claim: Claim) -> OffloadError:
        """Return the error for a claim without a record: it was deleted, or there was never one."""
        if not claim.has_own_form and not self._was_deleted(item, claim):
            return NotFoundError(f"no record {claim.refs[0]!r} says that this is its placeholder")
        errors = [self._session.missing(ref) for ref in claim.refs]
        return next((error for error in errors if isinstance(error, ExpiredError)), errors[0])

    def _was_deleted(self, item: Item, claim: Claim) -> bool:
        """Return whether a deleted record proves a claim, or may prove it since it cannot be read."""
        headers = (header for ref in claim.refs for header in self._recognition.deleted(ref, item))
        return any(isinstance(header, OffloadError) or stands_for(header, item) for header in headers)

    def _is_text(self, item: Item, claim: Claim, error: _Resolution) -> bool:
        """Return whether a look-alike needs no record, or a record proves that it is just text.

        Its placeholder is the text itself if that had to be kept; else the text is its content, and who
        offloaded it may have sent it in full, as the gateway does.
        """
        if self._recognition.is_plain(item):
            return True
        if not claim.has_own_form:
            return type(error) is NotFoundError
        kind = (item.item_type, len(item.text))
        alike = [i for i in self._session.catalog.entries() if (i.item_type, i.chars) == kind]
        own = (item.tool_use_id, sha256(encode_text(item.text)).digest())
        opened = (record for _, record in self._session.open_many(alike))
        headers = (record.header for record in opened if not isinstance(record, OffloadError))
        return any(
            stands_for(header, item) or (header.tool_use_id, header.sha256) == own for header in headers
        )


def _proving(record: StoredRecord | OffloadError, item: Item) -> StoredRecord:
    """Return a record if it says that the text of an item is its placeholder, else raise why not."""
    if isinstance(record, OffloadError):
        raise record
    if not stands_for(record.header, item):
        is_elsewhere = record.header.placeholder == item.text
        why = "is of another item or tool call" if is_elsewhere else "has another placeholder"
        raise NotFoundError(f"record {record.ref!r} {why}")
    return record


def _worse(known: _Resolution, error: OffloadError) -> OffloadError:
    """Return which of two errors of a claim to report: that a record is not there says least."""
    return known if isinstance(known, OffloadError) and type(error) is NotFoundError else error


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
