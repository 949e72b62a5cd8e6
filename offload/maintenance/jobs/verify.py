"""The checksums of all records of a store, compared by many workers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from offload.errors import CorruptError, EncryptionError, NotFoundError, OffloadError
from offload.maintenance.jobs.each import run_each
from offload.records.index.objects import list_session, list_sessions, session_name
from offload.records.journal.chain import chain_of, left_branches
from offload.records.journal.format import JournalEntry, check_entry, own_entries
from offload.records.record import RecordInfo
from offload.records.record.digested import check_digest
from offload.records.session.names import check_known, check_name
from offload.records.session.reader import Damage, SessionReader
from offload.storage.layout import (
    BRANCH,
    CALLS,
    CLOSED,
    JOURNAL,
    SHADOW,
    decode_part,
    encode_part,
    is_link,
    name_of,
    session_part,
)
from offload.storage.store import OffloadStore, check_plain, get_many, has, in_groups

# The most that a worker checks at once; a larger record is a slice of its own.
_SLICE_RECORDS, _SLICE_BYTES = 16, 64 * 1024**2
# Links are small, and each slice of them lists the sessions that share.
_SLICE_LINKS = 1000


@dataclass(slots=True)
class VerifyReport:
    """The result of `verify`.

    Attributes:
        sessions: how many were looked at.
        checked: how many records were read whole and compared.
        checked_bytes: their bytes in the store.
        links: how many records that another session shares were looked up.
        damaged: the records that cannot be read, with the names of their sessions.
        unfit: the errors of records, entries and branches that do not fit the store's key, with the names of
            their sessions: they are encrypted with another one, or in clear, and not known to be damaged.
        lost: records that another session shared and has deleted since, with the names of those that read
            them.
        entries: how many entries of journals were read whole.
        gateway_objects: how many answered calls and shadow pairs of a gateway were read whole.
        damaged_entries: the errors of those and these that cannot be read, of missing entries, and of
            branches of forks, with the names of their sessions.
        failures: the errors of lost workers, each with a session that was not checked completely.
    """

    sessions: int = 0
    checked: int = 0
    checked_bytes: int = 0
    links: int = 0
    damaged: list[tuple[str, Damage]] = field(default_factory=list)
    unfit: list[tuple[str, EncryptionError]] = field(default_factory=list)
    lost: list[tuple[str, Damage]] = field(default_factory=list)
    entries: int = 0
    gateway_objects: int = 0
    damaged_entries: list[tuple[str, OffloadError]] = field(default_factory=list)
    failures: list[tuple[str, OffloadError]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some records and links of the session with a key part; `is_first` of each session counts it."""

    part: str
    infos: list[RecordInfo]
    is_first: bool
    is_fork: bool


class _Checked(NamedTuple):
    """The faults in a slice; see `VerifyReport`."""

    unfit: list[tuple[str, EncryptionError]]
    damaged: list[tuple[str, Damage]]
    lost: list[tuple[str, Damage]]
    branches: list[tuple[str, OffloadError]]


def verify(
    store: OffloadStore,
    *,
    session: str | None = None,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[VerifyReport], object] | None = None,
) -> VerifyReport:
    """Read every record, journal entry and gateway object of a store or a session, and compare checksums.

    A missing entry is found by the entries after it, those of forks too; one at the end is not.

    Args:
        store: the store.
        session: the name of the session; all of them without one.
        executor: any executor of `concurrent.futures`, such as those of processes or of Dask; by default
            threads read a store on another machine, and this thread a local one.
        storage_options: for workers in other processes, which open the store by its URL and have the
            credentials of their own environment otherwise.
        on_progress: called with the report so far after each slice of a session.

    Raises:
        ConfigError: an invalid name, or workers in other processes cannot open the store by its URL.
        NotFoundError: the store has nothing of the session.
        StoreError: the store cannot be listed.
    """
    if session is not None:
        check_name(session)
    report, told = VerifyReport(), on_progress or (lambda _: None)
    options: dict[str, Any] = {"executor": executor, "storage_options": [storage_options]}
    for part, found in run_each(_check, _slices(store, session), [store], **options):
        report.sessions += part.is_first
        if isinstance(found, OffloadError):
            report.failures.append((session_name(store, part.part), found))
        else:
            _add(report, part, found)
        told(report)
    for entries, errors in run_each(_check_entries, _entries(store, session), [store], **options):
        if isinstance(errors, OffloadError):
            report.failures.append((session_name(store, entries.part), errors))
        else:
            if JOURNAL.match(entries.keys[0]):
                report.entries += len(entries.keys)
            else:
                report.gateway_objects += len(entries.keys)
            _add_entries(report, errors)
        told(report)
    found_any = report.checked or report.links or report.entries or report.gateway_objects
    if session is not None and not (found_any or report.failures):
        check_known(store, session)
    return report


def _add(report: VerifyReport, part: _Slice, found: _Checked) -> None:
    own = [info for info in part.infos if not is_link(info.key)]
    report.checked += len(own)
    report.checked_bytes += sum(info.stored_bytes for info in own)
    report.links += len(part.infos) - len(own)
    report.unfit += found.unfit
    report.damaged += found.damaged
    report.lost += found.lost
    _add_entries(report, found.branches)


def _add_entries(report: VerifyReport, errors: list[tuple[str, OffloadError]]) -> None:
    report.unfit += [(name, error) for name, error in errors if isinstance(error, EncryptionError)]
    report.damaged_entries += [each for each in errors if not isinstance(each[1], EncryptionError)]


def _slices(store: OffloadStore, session: str | None) -> Iterator[_Slice]:
    listed = list_sessions(store) if session is None else [list_session(store, encode_part(session))]
    for objects in listed:
        own, links = list[RecordInfo](), list[RecordInfo]()
        for info in (*objects.records, *objects.torn):
            (links if is_link(info.key) else own).append(info)
        size = attrgetter("stored_bytes")
        groups = [
            *in_groups(own, size, most=_SLICE_BYTES, count=_SLICE_RECORDS),
            *in_groups(links, size, most=_SLICE_BYTES, count=_SLICE_LINKS),
        ]
        for number, group in enumerate(groups or [[]]):
            yield _Slice(objects.part, group, not number, objects.is_fork)


def _check(store: OffloadStore, part: _Slice) -> _Checked:
    """Return the faults in a slice, and in the branch of a fork with the first one."""
    reader = SessionReader.of_part(store, part.part)
    checked = _Checked([], [], [], [])
    own = [damage for info in part.infos if not is_link(info.key) and (damage := reader.check(info))]
    for damage in own + reader.check_links([info for info in part.infos if is_link(info.key)]):
        if isinstance(damage.error, EncryptionError):
            checked.unfit.append((reader.name, damage.error))
        elif is_link(damage.info.key) and isinstance(damage.error, NotFoundError):
            checked.lost.append((reader.name, damage))
        else:
            checked.damaged.append((reader.name, damage))
    if part.is_first and part.is_fork:
        try:
            reader.catalog.load()
        except NotFoundError:
            pass  # An entry of the parent is missing, which the check of the entries reports.
        except OffloadError as error:
            checked.branches.append((reader.name, error))
        if not own_entries(store, part.part) and CLOSED.key(session=part.part) not in _closed(
            store, part.part
        ):
            missing = NotFoundError(
                "the journal entry with which the session continues its parent is missing"
            )
            checked.branches.append((reader.name, missing))
    return checked


def _closed(store: OffloadStore, part: str) -> set[str]:
    """Return the marks of a deletion of the session, or of what a rewind left, that is not finished."""
    listed = store.keys(CLOSED.key(session=part))
    return {mark.key for mark in listed if CLOSED.match(mark.key)}


@dataclass(frozen=True, slots=True)
class _Entries:
    """The keys of some entries or gateway objects of the session with a key part.

    With the first entries, their order is checked.
    """

    part: str
    keys: list[str]
    is_first: bool


def _entries(store: OffloadStore, session: str | None) -> Iterator[_Entries]:
    part_or_all = "" if session is None else encode_part(session)
    for family in (JOURNAL, CALLS):
        listed = store.keys(family.prefix(part_or_all))
        entries = (stored for stored in listed if family.match(stored.key) or SHADOW.match(stored.key))
        for part, own in groupby(entries, key=lambda stored: session_part(stored.key)):
            groups = in_groups(own, attrgetter("size"), most=_SLICE_BYTES, count=_SLICE_RECORDS)
            for number, group in enumerate(groups):
                yield _Entries(part, [stored.key for stored in group], not number and family is JOURNAL)


def _check_entries(store: OffloadStore, entries: _Entries) -> list[tuple[str, OffloadError]]:
    """Return the errors of damaged entries, and with the first ones those of missing ones."""
    checked = map(_checked_entry, entries.keys, get_many(store, entries.keys))
    errors = [error for error in checked if error is not None]
    if entries.is_first:
        errors += map(NotFoundError, dict.fromkeys(_missing_entries(store, entries.part)))
    name = session_name(store, entries.part) if errors else ""
    return [(name, error) for error in errors]


def _missing_entries(store: OffloadStore, part: str) -> Iterator[str]:
    """Yield what the entries of a session continue and the store lacks; nothing while it is deleted."""
    closed, own = _closed(store, part), own_entries(store, part)
    if not own or CLOSED.key(session=part) in closed:
        return
    # A gc that deletes what a rewind left may be at it, or was killed.
    left = {} if closed else left_branches(store, part, own)
    for entries in (chain_of(store, part, own), *(branch.entries for branch in left.values())):
        yield from _gaps(part, entries)
    for entry in own:
        branch = entry.parent and BRANCH.key(session=part, parent=entry.parent, base=f"{entry.base:09}")
        if branch and not has(store, branch):
            yield f"{branch}, by which the session reads records of the one it was forked from, is missing"


def _gaps(part: str, entries: Sequence[JournalEntry]) -> Iterator[str]:
    """Yield the entries that are missing between some, each of which continues the one before it."""
    for before, entry in zip((None, *entries), entries, strict=False):
        first = 0 if before is None else before.number + 1
        owner = session_part(entry.at)
        if entry.base is not None:
            if entry.base == (entry.number if before is None else before.number):
                continue
            first, last, owner = entry.base, entry.base, entry.parent or owner
        elif entry.number > first:
            last = entry.number - 1
        else:
            continue
        numbers = f"entry {first} is" if first == last else f"entries {first} to {last} are"
        of = f", of session {decode_part(owner)!r} that it was forked from" if owner != part else ""
        yield f"{numbers} missing in the journal{of}"


def _checked_entry(key: str, data: bytes | OffloadError) -> OffloadError | None:
    if isinstance(data, OffloadError):
        # One that is not found was deleted since the listing.
        return None if isinstance(data, NotFoundError) else data
    try:
        if JOURNAL.match(key):
            check_entry(key, data)
        elif data:  # a call without content marks the beginning of a conversation
            check_plain(data)
            check_digest(data, name_of(key))
    except (CorruptError, EncryptionError) as error:
        return error if key in str(error) else type(error)(f"{key}: {error}")
    return None
