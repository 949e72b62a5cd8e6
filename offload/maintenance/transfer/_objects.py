"""Copying what a session has besides records: its journal, the calls that a gateway answered, its pins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from offload import errors
from offload.maintenance.transfer._report import CopyFailure, CopyReport, noting
from offload.records.journal.chain import chain_of
from offload.records.journal.format import check_entry, name_in_copy, own_entries
from offload.records.record.digested import check_digest
from offload.records.session.reader import SessionReader
from offload.storage import layout
from offload.storage.store import OffloadStore, check_plain, create

_CheckBytes = Callable[[str, bytes], object]


class ObjectCopy:
    """Copies objects of one session into another; what fails is in the report."""

    def __init__(
        self, source: SessionReader, target: SessionReader, report: CopyReport, *, repairs: bool
    ) -> None:
        self._source = source
        self._target = target
        self._report = report
        self._repairs = repairs

    def pins(self) -> None:
        """Copy the pins before the records, so that gc deletes no copied record in between."""
        for stored in self._source.store.keys(layout.PIN.prefix(self._source.part)):
            if layout.PIN.match(stored.key):
                create(self._target.store, stored.key)

    def journal(self) -> None:
        """Copy the journal entries in order, so that an interrupted copy shows an earlier turn."""
        names = self._journal_names()
        existing = {layout.name_of(entry.at) for entry in own_entries(self._target.store, self._target.part)}
        numbers = {name.partition("~")[0] for name in names}
        # Those that the source lacks, and neither replaced nor continued, its gc has deleted.
        others = sorted(
            name for name in existing - names.keys() if name.partition("~")[0] in numbers or name > max(names)
        )
        if names and others and not existing.issuperset(names):
            error = errors.CollisionError(
                f"the journal of session {self._target.name!r} in {self._target.store.url} continues with "
                "other entries, so it is not copied; copy the session under another name"
            )
            self._report.failures.append(CopyFailure(None, names[max(names)], error))
            return
        self._copy_objects(layout.JOURNAL, names, existing, check_entry)

    def calls(self) -> None:
        """Copy the calls that a gateway answered, so that the copy continues its conversations, and pairs."""
        source = layout.CALLS.prefix(self._source.part)
        listed = (stored.key for stored in self._source.store.keys(source))
        calls = [key for key in listed if layout.CALLS.match(key) or layout.SHADOW.match(key)]
        names = {key.removeprefix(source): key for key in calls}
        target = layout.CALLS.prefix(self._target.part)
        existing = {stored.key.removeprefix(target) for stored in self._target.store.keys(target)}
        self._copy_objects(layout.CALLS, names, existing, _check_calls)

    def _copy_objects(
        self, family: layout.Family, names: Mapping[str, str], existing: Collection[str], check: _CheckBytes
    ) -> None:
        """Copy sound objects that are not among the `existing`, or damaged there, by their names there."""
        target, store = family.prefix(self._target.part), self._target.store
        for name, key in names.items():
            is_there, there = name in existing, target + name
            if is_there and not self._repairs:
                continue
            with noting(self._report, key):
                if is_there and _is_sound(store, there, check):
                    continue
                data = self._source.store.get(key)
                check(key, data)
                if is_there:
                    store.put(there, data, overwrite=True)
                    self._report.repaired.append(there)
                else:
                    create(store, there, data)

    def _journal_names(self) -> dict[str, str]:
        """Return the keys of the journal by their ends in the copy, which has all of a fork as its own."""
        entries = own_entries(self._source.store, self._source.part)
        if any(entry.parent is not None for entry in entries):
            entries = chain_of(self._source.store, self._source.part, entries)
        return {name_in_copy(entry.at): entry.at for entry in entries}


def _check_calls(key: str, data: bytes) -> None:
    """Raise `CorruptError` if the object with answered calls or a pair is damaged; a mark is empty."""
    check_plain(data, key)
    match = layout.CALLS.match(key)
    if match is not None and match["reply"] is None:
        if data:
            raise errors.CorruptError(f"{key} must be empty")
        return
    try:
        check_digest(data, layout.name_of(key))
    except errors.CorruptError as error:
        raise errors.CorruptError(f"{key}: {error}") from error


def _is_sound(store: OffloadStore, key: str, check: _CheckBytes) -> bool:
    try:
        check(key, store.get(key))
    except (errors.CorruptError, errors.NotFoundError):
        return False
    return True
