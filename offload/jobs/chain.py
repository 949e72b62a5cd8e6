"""The chain of a journal: each entry has the digest of the one before it and those of the records it cites.

A session is checked from the store alone, without a clock. The store alone does not show that the end of a
journal was cut; for that, the caller passes the digest of an earlier end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from offload.errors import ConfigError, CorruptError, ExpiredError, NotFoundError, OffloadError, StoreError
from offload.index.objects import session_name
from offload.jobs.each import run_each
from offload.layout import BRANCH, CLOSED, JOURNAL, decode_part, encode_part, session_part
from offload.record.text import decode_text
from offload.session.checkpoint import Checkpoint
from offload.session.lineage import (
    NO_CHANGES,
    JournalEntry,
    Origin,
    chain_of,
    entry_bytes,
    entry_digest,
    last_written,
    own_entries,
    read_digest,
)
from offload.session.names import check_known, is_ref
from offload.session.reader import SessionReader
from offload.store import OffloadStore, folders, get_many, in_groups

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
# The most that is in memory at once.
_GROUP_ENTRIES, _GROUP_BYTES = 64, 64 * 1024**2


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """One fact about the chain of a session.

    Attributes:
        session: the name of the session.
        entry: the number of the journal entry that it is about.
        ref: the id of the record that it is about, if it is about one.
        text: what is wrong, or what was found.
    """

    session: str
    entry: int
    ref: str | None
    text: str


@dataclass(slots=True)
class ChainReport:
    """The result of `verify_chain`.

    Attributes:
        sessions: how many sessions have a journal.
        entries: how many entries were read.
        chained: how many of them have the digest of the one before; older releases wrote none.
        records: how many cited records were read whole and compared.
        heads: by the name of a session, the digest of its last entry: keep it to find later what was cut.
        problems: what was changed, reordered, inserted, cut or lost, and what two writers did.
        notes: what is not damage: entries that are not chained, what gc deleted.
        failures: the errors of sessions that could not be checked.
    """

    sessions: int = 0
    entries: int = 0
    chained: int = 0
    records: int = 0
    heads: dict[str, str] = field(default_factory=dict)
    problems: list[ChainFinding] = field(default_factory=list)
    notes: list[ChainFinding] = field(default_factory=list)
    failures: list[tuple[str, OffloadError]] = field(default_factory=list)


def verify_chain(
    store: OffloadStore,
    *,
    session: str | None = None,
    head: str | Checkpoint | None = None,
    public_key: bytes | Ed25519PublicKey | None = None,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ChainReport], object] | None = None,
) -> ChainReport:
    """Check that the journals of a store, or of one session, and their records are unchanged.

    Every entry and every cited record is read whole. With a session, those that it was forked from are
    checked too. An encrypted store needs its key: the digests are those of the contents.

    Args:
        store: the store.
        session: the name of the session; all of them without one.
        head: a checkpoint or digest of an earlier end of the session; if it is found, nothing before it was
            cut.
        public_key: proves the signature of the checkpoint: an Ed25519 public key, or its PEM file.
        executor: as for `verify`; a worker checks one session.
        storage_options: as for `verify`.
        on_progress: called with the report so far after each session.

    Raises:
        ConfigError: `head` is not a digest, or is given without a session; `public_key` is no such key, or is
            given without a checkpoint; or as for `verify`.
        MissingExtraError: there is a key, and the package of the extra `crypto` is not installed.
        NotFoundError: there is no such session.
        StoreError: the store cannot be listed.
    """
    report, told = ChainReport(), on_progress or (lambda _: None)
    if public_key is not None and not isinstance(head, Checkpoint):
        raise ConfigError("public_key needs a checkpoint as head")
    if isinstance(head, Checkpoint):
        head = _proved(head, public_key, report)
    if head is not None and (session is None or not _DIGEST.fullmatch(head)):
        raise ConfigError(f"head must be the 64 hexadecimal digits of one session's digest, got {head!r:.80}")
    parts = folders(store, JOURNAL.prefix()) if session is None else _lineage(store, session)
    options: dict[str, Any] = {"executor": executor, "storage_options": [storage_options]}
    found: dict[str, _Checked] = {}
    for part, checked in run_each(_check, parts, [store], **options):
        name = session_name(store, part)
        if isinstance(checked, OffloadError):
            report.failures.append((name, checked))
        elif checked.entries:
            _add(report, name, checked)
            found |= {part: checked} if head is not None else {}
        told(report)
    if session is not None and head is not None and not report.failures:
        _find_head(store, session, head, found, report)
    return report


@dataclass(slots=True)
class _Checked:
    """The result for one session: findings by entry and ref, and the digests of its entries by key."""

    entries: int = 0
    chained: int = 0
    records: int = 0
    head: str | None = None
    problems: list[tuple[int, str | None, str]] = field(default_factory=list)
    notes: list[tuple[int, str | None, str]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def _add(report: ChainReport, name: str, checked: _Checked) -> None:
    report.sessions += 1
    report.entries += checked.entries
    report.chained += checked.chained
    report.records += checked.records
    report.heads |= {name: checked.head} if checked.head else {}
    report.problems += [ChainFinding(name, *one) for one in checked.problems]
    report.notes += [ChainFinding(name, *one) for one in checked.notes]


def _proved(head: Checkpoint, key: bytes | Ed25519PublicKey | None, report: ChainReport) -> str:
    """Return the digest of a checkpoint, and report whether its signature was checked."""
    if key is not None and not head.is_signed_by(key):
        text = (
            "the checkpoint is not signed by this key" if head.signature else "the checkpoint is not signed"
        )
        report.problems.append(ChainFinding(head.session, head.entry, None, text))
    elif key is None and head.signature:
        text = "the signature of the checkpoint was not checked, since no public key was given"
        report.notes.append(ChainFinding(head.session, head.entry, None, text))
    return head.digest


def _lineage(store: OffloadStore, session: str) -> list[str]:
    """Return the key parts of a session and of those that it was forked from."""
    part = encode_part(check_known(store, session))
    entries = chain_of(store, part, own_entries(store, part))
    return [*dict.fromkeys([part, *(session_part(entry.at) for entry in reversed(entries))])]


def _find_head(
    store: OffloadStore, session: str, head: str, found: Mapping[str, _Checked], report: ChainReport
) -> None:
    """Report whether the chain of a session has the entry with the digest `head`."""
    part = encode_part(session)
    entries = chain_of(store, part, own_entries(store, part))
    digests = {key: digest for checked in found.values() for key, digest in checked.digests.items()}
    last = entries[-1].number if entries else 0
    if head in {digests.get(entry.at) for entry in entries}:
        return
    if head in digests.values():
        text = "the entry with this digest is on a branch that a rewind left, no longer in the timeline"
        report.notes.append(ChainFinding(session, last, None, text))
        return
    text = (
        f"no entry has the digest {head:.12}…: the end of the journal was cut, an entry was changed, or a "
        "rewind left it and gc deleted it"
    )
    report.problems.append(ChainFinding(session, last, None, text))


def _check(store: OffloadStore, part: str) -> _Checked:
    """Check the own entries of the session with a key part, and the records that they cite."""
    return _Check(store, part).run()


class _Check:
    """The check of one session, entry by entry in the order of their numbers."""

    def __init__(self, store: OffloadStore, part: str) -> None:
        self._store = store
        self._part = part
        self._own = own_entries(store, part)
        self._found = _Checked(len(self._own))
        chain = chain_of(store, part, self._own)
        self._in_timeline = {entry.at for entry in chain}
        self._last = last_written(chain)
        self._is_closed = any(CLOSED.match(mark.key) for mark in store.keys(CLOSED.key(session=part)))
        self._unchained: list[int] = []
        self._numbers: dict[str, int] = {}
        self._cited: dict[tuple[str, str], int] = {}
        # The digest of the entry that the next one continues, None at the beginning; whether it is known.
        self._expected: str | None = None
        self._is_known = True

    def run(self) -> _Checked:
        before: JournalEntry | None = None
        for entry, data in self._read():
            content = self._content(entry, data)
            if before is not None and before.number == entry.number:
                self._problem(entry, "two entries have this number: two writers, or one of them was added")
            if entry.base is not None:
                self._continue_from(entry, before, content)
            elif content is not None:
                self._link(entry, before, content)
            self._is_known = self._is_known and content is not None
            before = entry
        self._note_unchained()
        self._compare_records()
        if self._last is not None:
            self._found.head = self._digest_of(self._last)
        return self._found

    def _read(self) -> Iterator[tuple[JournalEntry, bytes | OffloadError]]:
        for group in in_groups(self._own, attrgetter("size"), most=_GROUP_BYTES, count=_GROUP_ENTRIES):
            yield from zip(group, get_many(self._store, [entry.at for entry in group]), strict=True)

    def _link(self, entry: JournalEntry, before: JournalEntry | None, content: bytes) -> None:
        """Compare an entry with the one before it, which it continues; the next one continues this one."""
        head = self._head(entry, content)
        if "previous" not in head:
            self._unchained.append(entry.number)
            self._look_for_gap(entry, before)
        else:
            self._found.chained += 1
            self._compare(entry, before, head["previous"])
        self._expected, self._is_known = entry_digest(entry.at, content), True
        self._found.digests[entry.at] = self._expected
        self._numbers[self._expected] = entry.number

    def _content(self, entry: JournalEntry, data: bytes | OffloadError) -> bytes | None:
        """Return the content of an entry, or report why there is none."""
        try:
            if isinstance(data, StoreError):
                raise data
            if isinstance(data, OffloadError):
                self._problem(entry, f"the entry cannot be read: {data}")
                return None
            return entry_bytes(entry, data)
        except CorruptError as error:
            self._problem(entry, f"the entry is damaged: {error}")
            return None

    def _head(self, entry: JournalEntry, content: bytes) -> Mapping[str, Any]:
        """Return the head of an entry, and note the records that it cites."""
        try:
            head: dict[str, Any] = json.loads(decode_text(content).partition("\n")[0])
            cited = [(ref, digest) for ref, digest in head.get("digests", {}).items()]
        except (ValueError, AttributeError, RecursionError):
            self._problem(entry, "the entry has values that no agent stores")
            return {}
        for ref, digest in cited:
            if is_ref(ref) and isinstance(digest, str):
                self._cited.setdefault((ref, digest), entry.number)
            else:
                self._problem(entry, "the entry has values that no agent stores")
        return head

    def _continue_from(self, entry: JournalEntry, before: JournalEntry | None, content: bytes | None) -> None:
        """Take up the chain where a fork or a rewind does."""
        if content is not None and content != NO_CHANGES:
            self._problem(entry, "the entry begins a fork or a rewind, and was changed: it has content")
        if entry.is_rewind and before is not None and before.number + 1 < entry.number:
            gap = _gap(before.number + 1, entry.number - 1)
            self._note(entry, f"{gap} not there, which this rewind left: gc deletes such entries")
        self._expected, self._is_known = None, False
        base = chain_of(self._store, self._part, self._own, entry.base)
        if entry.parent is not None:
            base = chain_of(self._store, entry.parent, own_entries(self._store, entry.parent), entry.base)
            self._check_branch(
                entry, BRANCH.key(session=self._part, parent=entry.parent, base=f"{entry.base:09}")
            )
        last = last_written(base)
        if not base or base[-1].number != entry.base or last is None:
            owner = f" of session {decode_part(entry.parent)!r}" if entry.parent is not None else ""
            self._problem(entry, f"entry {entry.base}{owner}, which this one continues, is missing")
            return
        self._expected = self._digest_of(last)
        self._is_known = self._expected is not None

    def _check_branch(self, entry: JournalEntry, key: str) -> None:
        """Check that the fork reads the records of the parent that its first entry names."""
        try:
            if encode_part(Origin.parse(self._store.get(key)).session) == entry.parent:
                return
        except (NotFoundError, msgspec.MsgspecError, RecursionError):
            pass
        self._problem(entry, "the branch by which the fork reads records of its parent is missing or damaged")

    def _digest_of(self, entry: JournalEntry) -> str | None:
        """Return the digest of an entry of the session or of a parent; None if it cannot be read."""
        known = self._found.digests.get(entry.at)
        if known is not None or session_part(entry.at) == self._part:
            return known
        try:
            return read_digest(self._store, entry)
        except (CorruptError, NotFoundError):
            return None

    def _compare(self, entry: JournalEntry, before: JournalEntry | None, previous: object) -> None:
        """Compare the digest that an entry has with that of the entry which it continues."""
        continued = self._numbers.get(previous) if isinstance(previous, str) else None
        if not self._is_known or previous == self._expected:
            return
        # Of two entries of one number the next one continues either.
        if before is not None and before.number in (continued, entry.number):
            return
        if previous is None and entry.kind == "begun":
            self._note(entry, "a new conversation begins, whose writer could not read the entry before it")
        elif continued is not None:
            self._problem(
                entry,
                f"the entry continues entry {continued}, not the one before it: entries were added or "
                "reordered, a rewind was cut, or two writers took turns",
            )
        elif before is not None and before.number + 1 >= entry.number:
            number = before.number if before.base is None else before.base
            self._problem(entry, f"entry {number}, which this one continues, was changed")
        else:
            self._report_gap(entry, before)

    def _look_for_gap(self, entry: JournalEntry, before: JournalEntry | None) -> None:
        """Report that an entry which is not chained continues one that is missing."""
        first = 0 if before is None else before.number + 1
        if entry.kind == "grown" and entry.number > first:
            self._report_gap(entry, before)

    def _report_gap(self, entry: JournalEntry, before: JournalEntry | None) -> None:
        gap = _gap(0 if before is None else before.number + 1, entry.number - 1)
        if self._is_closed:
            self._note(entry, f"{gap} not there: the session is being deleted")
        elif entry.at not in self._in_timeline:
            self._note(entry, f"{gap} not there, on a branch that a rewind left: gc deletes such entries")
        else:
            self._problem(entry, f"{gap} missing")

    def _note_unchained(self) -> None:
        if self._unchained:
            first, last = self._unchained[0], self._unchained[-1]
            text = f"not chained: {len(self._unchained)} of entries {first} to {last}, by an older release"
            self._found.notes.append((first, None, text))

    def _compare_records(self) -> None:
        """Read the records that the entries cite, and compare the digests of their contents."""
        if not self._cited:
            return
        reader = SessionReader(self._store, session_name(self._store, self._part))
        try:
            reader.catalog.load()
        except (CorruptError, NotFoundError) as error:
            self._found.problems.append((self._own[0].number, None, f"the records cannot be found: {error}"))
            return
        for (ref, digest), number in self._cited.items():
            problem, note = _fault(reader, ref, digest)
            self._found.records += problem is None and note is None
            self._found.problems += [(number, ref, problem)] if problem else []
            self._found.notes += [(number, ref, note)] if note else []

    def _problem(self, entry: JournalEntry, text: str) -> None:
        self._found.problems.append((entry.number, None, text))

    def _note(self, entry: JournalEntry, text: str) -> None:
        self._found.notes.append((entry.number, None, text))


def _gap(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _fault(reader: SessionReader, ref: str, digest: str) -> tuple[str | None, str | None]:
    """Return the problem with a record whose content had a digest, and the note about it."""
    try:
        record = reader.verified(reader.find(ref))
    except StoreError:
        raise
    except ExpiredError as error:
        return None, str(error)
    except NotFoundError:
        return "the record is missing", None
    except OffloadError as error:
        return f"the record is damaged: {error}", None
    if record.header.sha256.hex() != digest:
        return "the record has another content than the one that was stored", None
    return None, None
