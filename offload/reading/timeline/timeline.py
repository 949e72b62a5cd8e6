"""The timeline of a session: its requests, oldest first, each as it was sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from difflib import SequenceMatcher
from html import escape
from typing import Any, Literal, overload

from offload.base.threads.locks import cached
from offload.engine.placeholder.forms import known_refs
from offload.errors import ConfigError, check_number
from offload.messages import Usage, to_json
from offload.messages.access import edits
from offload.messages.formats import scan_of
from offload.reading.timeline.forks import SessionFork, fork_tree
from offload.records.journal.format import JournalEntry, RequestFigures
from offload.records.journal.reader import Journal, JournalState
from offload.records.record.display import html_table
from offload.storage.layout import encode_part
from offload.storage.store import OffloadStore

ChangeKind = Literal["added", "replaced", "compacted", "edited", "removed"]
# Above so many comparisons, all messages between the common ends count as changed.
_MOST_COMPARED = 1_000_000


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request of a session.

    Attributes:
        number: its number, from 1.
        time: when it was sent, by the clock of the process that sent it.
        messages: how many messages it has.
        tokens: their tokens by the session's counter; with a `ContextManager` also those of the system prompt
            and the tools, all corrected by the provider's counts.
        tokens_offloaded: tokens that it would have in addition if nothing had been offloaded or compacted.
        records: how many records were created since the request before.
        read_backs: how often the model read a record since then.
        is_compacted: whether messages were removed by a compaction since then.
        model: the model that it was sent to; None if the journal does not say.
        usage: what the provider counted for it; None if that was not reported, or not yet.
    """

    number: int
    time: datetime
    messages: int
    tokens: int
    tokens_offloaded: int
    records: int
    read_backs: int
    is_compacted: bool
    model: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the messages of a request and of the one before.

    Attributes:
        kind: "added", a new message; "replaced", a message with a placeholder that it did not have;
            "compacted", a message that a compaction removed or wrote; "removed", a message that is not there
            any more; "edited", any other difference.
        index: its index among the messages of the request; for a removed message, that of the next one.
        before: the message in the request before; None if it was not there.
        after: the message in this request; None if it is not there.
    """

    kind: ChangeKind
    index: int
    before: Any = None
    after: Any = None


_SHOWN = [field for field in fields(SentRequest) if field.name != "usage"]
_MOST_SHOWN = 50


class Timeline(Sequence[SentRequest]):
    """The requests of a session as its journal has them, when this object was made.

    It takes one listing for each 1,000 entries of the journal. Numbers count from 1, indices from 0.

    Args:
        store: the store of the session.
        session: its name.
        branch: the id of a branch that a rewind left: the requests are then those before this rewind.
        own: the session's own entries, if they are listed already.

    Raises:
        NotFoundError: there is no such branch.
        StoreError: the store failed.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        *,
        branch: str | None = None,
        own: Sequence[JournalEntry] | None = None,
    ) -> None:
        self._store = store
        self._session = session
        self._journal = Journal(store, session, branch, own)
        self._requests = _requests(self._journal.entries)

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> SentRequest: ...
    @overload
    def __getitem__(self, index: slice) -> list[SentRequest]: ...
    def __getitem__(self, index: int | slice) -> SentRequest | list[SentRequest]:
        try:
            return self._requests[index]
        except IndexError:
            raise IndexError(f"no index {index}: {self._journal.described(len(self))}") from None

    def __repr__(self) -> str:
        requests = f"{len(self):,} request{'s' * (len(self) != 1)}"
        return f"Timeline({self._store.url!r}, session={self._session!r}): {requests}"

    def _repr_html_(self) -> str:
        """Return the last requests as a table, for a notebook."""
        shown = self[-_MOST_SHOWN:]
        rest = f"<p>{len(self) - len(shown):,} earlier requests</p>" if len(shown) < len(self) else ""
        rows = [{field.name: getattr(request, field.name) for field in _SHOWN} for request in shown]
        return f"<p>{escape(repr(self))}</p>{rest}{html_table(rows)}"

    @cached
    def branches(self) -> Mapping[str, Sequence[SentRequest]]:
        """The requests that rewinds left, by the id of their branch, the newest first.

        `Offloader.timeline(branch=id)` has them and those before; `fork` and `rewind` continue from them. A
        request that several branches have is in the newest one. gc deletes them after the grace period.
        """
        found = {name: (_requests(left.entries), left.numbers) for name, left in self._journal.left().items()}
        return {name: [sent[number - 1] for number in numbers] for name, (sent, numbers) in found.items()}

    @property
    def forks(self) -> SessionFork:
        """The first of the sessions that this one was forked from, with its forks; at most 50 sessions.

        It takes two listings for each. Raises `StoreError`.
        """
        return fork_tree(self._store, encode_part(self._session), self._journal.own)

    @property
    def stored_bytes(self) -> int:
        """The uncompressed bytes of the entries of the journal."""
        return sum(entry.size for entry in self._journal.entries)

    def latest(self) -> JournalState:
        """Return the conversation as of the last entry, a reply to the last request too; raises as `at`."""
        return self._journal.latest()

    def at(self, number: int) -> list[Any]:
        """Return the messages of a request as they were sent; SDK objects are returned as data.

        It reads only the entries of the journal that this request needs. Texts are as `redact` left them.

        Args:
            number: the number of the request, from 1.

        Raises:
            ConfigError: `number` is not an integer of at least 0.
            NotFoundError: the session has no such request, or entries that it needs were deleted.
            CollisionError: two agents continued the session at the same time, and this request is in doubt.
            CorruptError: an entry is damaged.
            StoreError: the store failed.
        """
        [messages] = self._messages([number])
        return messages

    def _messages(self, numbers: Sequence[int]) -> list[list[Any]]:
        return self._journal.messages([self._place(number) for number in numbers])

    def _place(self, number: int) -> int:
        """Return the index of the entry of a request; raises as `at`."""
        check_number("number", number, 0)
        return self._journal.place(number)

    def pair(self, number: int, *, since: int | None = None) -> tuple[list[Any], list[Any]]:
        """Return the messages of an earlier request and of a request, given and raised as for `changes`.

        A message of both is one object, unless a whole list was stored between them.
        """
        self._place(number)
        start = number - 1 if since is None else since
        if type(start) is not int or not 0 <= start <= number:
            raise ConfigError(f"since must be the number of a request before {number}, got {since!r:.40}")
        [*before, after] = self._messages([start, number] if start else [number])
        return before[0] if before else [], after

    def changes(self, number: int, *, since: int | None = None) -> list[Change]:
        """Return what differs from an earlier request, in order of the messages; raises as `at`.

        Args:
            number: the number of the request.
            since: the number of the earlier one; by default the one before.
        """
        before, after = self.pair(number, since=since)
        start = number - 1 if since is None else since
        is_compacted = any(request.is_compacted for request in self[start:number])
        return list(differences(before, after, is_compacted=is_compacted))


def _requests(entries: Sequence[JournalEntry]) -> list[SentRequest]:
    used = dict[int, Usage]()
    sent = list[tuple[RequestFigures, str | None]]()
    for entry in entries:
        if entry.used is not None:
            used[len(sent)] = entry.used
        if entry.sent is not None:
            sent.append((entry.sent, entry.model))
    return [
        SentRequest(
            number,
            datetime.fromtimestamp(one.at / 1000, UTC),
            one.messages,
            one.tokens,
            one.tokens_offloaded,
            one.records,
            one.read_backs,
            is_compacted=one.compactions > (sent[number - 2][0].compactions if number > 1 else 0),
            model=model,
            usage=used.get(number),
        )
        for number, (one, model) in enumerate(sent, 1)
    ]


def differences(before: Sequence[Any], after: Sequence[Any], *, is_compacted: bool) -> Iterator[Change]:
    """Yield what differs between two lists of messages, in order."""
    first = next(edits(before, after), len(before))
    rest = before[first:][::-1], after[first:][::-1]
    last = next(edits(*rest), len(rest[0]))
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        if tag == "equal":
            continue
        pairs = min(i2 - i1, j2 - j1)
        for n in range(max(i2 - i1, j2 - j1)):
            one = old[i1 + n] if n < i2 - i1 else None
            other = new[j1 + n] if n < j2 - j1 else None
            is_new = not last and j1 + n >= len(old) and n >= pairs
            yield Change(
                _kind(one, other, is_new=is_new, is_compacted=is_compacted),
                first + min(j1 + n, j2),
                one,
                other,
            )


def _kind(before: Any, after: Any, *, is_new: bool, is_compacted: bool) -> ChangeKind:
    if before is not None and after is not None and _refs(after) - _refs(before):
        return "replaced"
    if is_compacted and not (before is None and is_new):
        return "compacted"
    if after is None:
        return "removed"
    return "added" if before is None else "edited"


def _refs(message: Any) -> set[str]:
    return {ref for item in scan_of(message).offloadable for ref in known_refs(item.text)}


def _opcodes(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[str, int, int, int, int]]:
    if len(old) * len(new) > _MOST_COMPARED:
        return [("replace", 0, len(old), 0, len(new))]
    texts = [repr(to_json(message)) for message in old], [repr(to_json(message)) for message in new]
    return [*SequenceMatcher(None, *texts, autojunk=False).get_opcodes()]
