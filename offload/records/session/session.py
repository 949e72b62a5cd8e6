"""Writing the records of one session: each is created once, adopted if it exists, never overwritten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from copy import copy

from offload.base.identity import ItemIdentity
from offload.errors import (
    CollisionError,
    CorruptError,
    ExistsError,
    NotFoundError,
    OffloadError,
    StoreError,
    result_or_error,
)
from offload.messages.base import Item
from offload.records.codec import CODECS, QUOTING, Codec
from offload.records.index.entries import record_key
from offload.records.index.objects import latest_deletion
from offload.records.record import Header, RecordInfo
from offload.records.record.header import (
    MAX_DRAWS,
    REF_FORMS,
    Counts,
    Head,
    IdStyle,
    draw_ref,
    drawn_by,
)
from offload.records.session.create import NewRecord, create_records
from offload.records.session.drafts import Draft, OffloadedItem
from offload.records.session.reader import SessionReader
from offload.storage.layout import LAST_USE, RECORD, encode_part, generation_of, is_link, name_of, tool_part
from offload.storage.store import OffloadStore, put_many

# The maximum number of other refs and later generations that are tried for one item.
_MAX_TRIES = 20
# gc needs the time of last use by the hour.
_TOUCH_SECONDS = 3600


class _Attempt(NewRecord, frozen=True, kw_only=True):
    """One try to store a draft; `draw` counts the refs that collided."""

    draft: Draft
    draw: int


_HeaderOrError = Header | OffloadError


class Session(SessionReader):
    """The records of one agent conversation.

    Args:
        codec: the codec of new records; existing records are read by the codec of their key.
        id_style: the style of new refs; refs of any style are read.
        category: returns the category of an item type and tool name, if the placeholders name one.

    Attributes:
        checks_adopted: whether `adopt` ends with a listing, and makes the records durable. Without it the
            host has to look later which records are gone, and to store these again.
    """

    def __init__(
        self,
        store: OffloadStore,
        name: str,
        codec: Codec,
        id_style: IdStyle = "letters",
        category: Callable[[str, str | None], str] | None = None,
    ) -> None:
        super().__init__(store, name)
        self._use(codec, id_style, category)
        self._stored_here: set[str] = set()
        # Adopted records that may be lost in a power cut.
        self._undurable: set[str] = set()
        self._last_deletion = latest_deletion(store, name)

    def beside(
        self, codec: Codec, id_style: IdStyle, category: Callable[[str, str | None], str] | None
    ) -> Session:
        """Return the same session with new records in another form; both know what one of them learns."""
        other = copy(self)
        other._use(codec, id_style, category)  # noqa: SLF001 # of this class
        return other

    def _use(
        self, codec: Codec, id_style: IdStyle, category: Callable[[str, str | None], str] | None
    ) -> None:
        self._codec: Codec = codec
        self._id_style: IdStyle = id_style
        self._category = category
        self._problem: OffloadError | None = None
        self.checks_adopted: bool = True

    @property
    def may_quote(self) -> bool:
        """Whether new records may quote others: files that people read are whole."""
        return self._codec is CODECS["zstd"]

    def write(self, drafts: Iterable[Draft]) -> list[OffloadedItem | OffloadError]:
        """Store every draft; return the stored item or the error of each, in order.

        A new record costs one create-only put. A store with bulk verbs stores the first while others are
        drafted. If the session was not listed in the last day, its floor is. An existing record of the same
        item is a success and keeps its placeholder. After a collision with another item the ref is drawn
        again, longer if possible; after a deletion the item is stored as the next generation of its ref.
        """
        attempts: list[_Attempt | OffloadError] = []
        ready: list[_Attempt] = []

        def encoded() -> Iterator[_Attempt]:
            problem: OffloadError | None = None
            for place, draft in enumerate(drafts):
                if place == 0:
                    problem = result_or_error(self.catalog.learn)
                attempt = result_or_error(self._attempt, draft) if problem is None else problem
                attempts.append(attempt)
                if isinstance(attempt, _Attempt):
                    ready.append(attempt)
                    yield attempt

        outcomes = self._create(encoded())
        items = [result_or_error(self._settle, *pair) for pair in zip(ready, outcomes, strict=True)]
        adopted = {i for i, outcome in enumerate(outcomes) if isinstance(outcome, ExistsError)}
        settled = iter(self._store_deleted_again(ready, items, adopted) if adopted else items)
        return [a if isinstance(a, OffloadError) else next(settled) for a in attempts]

    def adopt(
        self, items: Mapping[ItemIdentity, str], *, is_listed: bool = False
    ) -> dict[ItemIdentity, OffloadedItem]:
        """Return the known readable records, under any key, of items that are given with their refs.

        Sends no request if the catalog knows no ref of the items; else one listing, a read of each header,
        and another listing if it `checks_adopted`. The first one is omitted if the session `is_listed` by the
        caller.
        """
        known = [ref for ref in items.values() if self.catalog.known(ref)]
        if not known:
            return {}
        self.catalog.learn()
        if not is_listed:
            self._refresh(known)
        infos = [info for ref in dict.fromkeys(known) for info in self._adoptable(ref)]
        records: dict[str, list[tuple[RecordInfo, Head]]] = {}
        for info, record in self.heads_of(infos):
            if not isinstance(record, OffloadError):
                records.setdefault(info.ref, []).append((info, record))
        own = {item: self._record_of(item, records.get(ref, ())) for item, ref in items.items()}
        self._note_adopted(info.key for info, _ in filter(None, own.values()))
        adopted = {
            item: self._offloaded(head.header, head.counts, info.key, info.stored_bytes)
            for item, (info, head) in ((item, record) for item, record in own.items() if record is not None)
        }
        # A record that is marked for deletion must not be adopted.
        gone = self.gone(stored.info for stored in adopted.values()) if self.checks_adopted else ()
        return {item: stored for item, stored in adopted.items() if stored.info.key not in gone}

    def _record_of(
        self, item: ItemIdentity, records: Iterable[tuple[RecordInfo, Head]]
    ) -> tuple[RecordInfo, Head] | None:
        return next((pair for pair in records if item == self.identity_in(pair[1].header)), None)

    def learn(self, heads: Mapping[str, Head]) -> None:
        """Take heads of records that another process found durable."""
        self.heads.learn(heads)
        self._stored_here.update(f"{RECORD.prefix(self.part)}{name}" for name in heads)

    def _note_adopted(self, keys: Iterable[str]) -> None:
        if self.store.durability == "power":
            self._undurable |= {key for key in keys if not (key in self._stored_here or is_link(key))}

    def _make_durable(self, there: AbstractSet[str]) -> None:
        """Create adopted records that are there again: a local store then makes the existing ones durable."""
        keys = self._undurable & there
        for error in put_many(self.store, [(key, b"") for key in sorted(keys)]):
            if error is not None and not isinstance(error, ExistsError):
                raise error
        self._undurable -= keys

    def gone(self, infos: Iterable[RecordInfo]) -> set[str]:
        """Return the keys of the records that are marked, expired or missing, by a fresh listing.

        The listing counts as a use of the session. The other ones that `adopt` returned are durable then.
        Raises `StoreError`.
        """
        refs = {info.key: info.ref for info in infos}
        if refs:
            # Before the tombstones are listed: gc first writes tombstones and then reads the last use.
            self._touch()
            self._refresh(refs.values())
        known = [info for ref in set(refs.values()) for info in self.catalog.known(ref)]
        there = refs.keys() & {info.key for info in known if info.stored_bytes and self._is_live(info)}
        self._make_durable(there)
        return refs.keys() - there

    def has_new_deletions(self) -> bool:
        """Return whether this process marked records of the session since the last call."""
        before, self._last_deletion = self._last_deletion, latest_deletion(self.store, self.name)
        return before is not self._last_deletion

    def ref_of(self, item: ItemIdentity, *, draw: int = 0) -> str:
        """Return the ref that an item draws in this session after `draw` collisions; see `draw_ref`.

        An item that came with a fork or a copy has the ref that it drew in the other session, of any style,
        also once its record is deleted.
        """
        for name in self.facts.origins:
            for style in REF_FORMS:
                other = draw_ref(name, *item[:4], style=style, draw=draw)
                if self.has_had(other):
                    return other
        return draw_ref(self.name, *item[:4], style=self._id_style, draw=draw)

    def identity_of(self, item: Item, sha256: bytes) -> ItemIdentity:
        """Return the identity of an item in this session, given the digest of its stored content."""
        return self._categorized(item.identity(sha256), item.tool_name)

    def knows(self, item: ItemIdentity) -> str | None:
        """Return the ref of an item if a record of it is known, by its first draw. Sends no request."""
        ref = self.ref_of(item)
        infos = self.catalog.known(ref)
        if self._category is not None:
            infos = [i for i in infos if self._category(i.item_type, i.tool_name) == item.category]
        elif item.category is not None:
            infos = [i for i in infos if tool_part(name_of(i.key)) == encode_part(item.category)]
        return ref if infos else None

    def identity_in(self, header: Header) -> ItemIdentity:
        """Return the identity in this session of the item that a header describes."""
        return self._categorized(header.identity, header.tool_name)

    def _categorized(self, item: ItemIdentity, tool_name: str | None) -> ItemIdentity:
        if self._category is None:
            # The place of a result without a call id is its tool, and a proof of its placeholder asks for it.
            is_placed = item.item_type != "tool_result" or item.tool_use_id is not None
            return item if is_placed or not tool_name else item._replace(category=tool_name)
        return item._replace(category=self._category(item.item_type, tool_name))

    def _is_same(self, one: Header, other: Header) -> bool:
        """Return whether a record of the session with the header `one` is of the item of `other`."""
        return self.identity_in(other) == self.identity_in(one)

    def _attempt(self, draft: Draft, draw: int = 0) -> _Attempt:
        item, counts = draft.item.identity(draft.content.counts.sha256), draft.content.counts
        ref = self.ref_of(item, draw=draw) if draw else draft.ref
        drawn_in = drawn_by(ref, item, (self.name, *self.facts.origins))
        if drawn_in is None:
            # The ref of a record that another session shared: it is gone, and no other record may have it.
            ref, drawn_in = draw_ref(self.name, *item[:4], style=self._id_style, draw=draw), self.name
        header = draft.header(ref, self.name, None if drawn_in == self.name else drawn_in)
        codec = QUOTING if draft.quotes else self._codec
        key = record_key(header, counts, codec.suffix, self.catalog.next_generation(ref))
        encoded = codec.encode(header, draft.content)
        return _Attempt(key=key, header=header, encoded=encoded, draft=draft, draw=draw)

    def _create(self, attempts: Iterable[_Attempt]) -> list[_HeaderOrError]:
        """Create the records, and look up in the store the refs that are taken."""
        tried: list[tuple[_Attempt, bool]] = []
        keys: dict[str, str] = {}

        def new() -> Iterator[_Attempt]:
            for attempt in attempts:
                # Items that differ in what draws no ref have other keys.
                is_drawn = keys.setdefault(attempt.header.ref, attempt.key) != attempt.key
                is_taken = is_drawn or self._is_taken(attempt)
                tried.append((attempt, is_taken))
                if not is_taken:
                    yield attempt

        created = iter(create_records(self.store, new(), self._is_same))
        outcomes = [
            ExistsError(f"{attempt.header.ref} is known") if is_taken else next(created)
            for attempt, is_taken in tried
        ]
        if tried and not self.catalog.floor.is_known:
            outcomes = self._above_floor([attempt for attempt, _ in tried], outcomes)
        pairs = zip(tried, outcomes, strict=True)
        taken = [attempt.header.ref for (attempt, _), outcome in pairs if isinstance(outcome, ExistsError)]
        # A record that is marked for deletion must not be adopted.
        error = result_or_error(self._refresh, taken)
        return [error or outcome if isinstance(outcome, ExistsError) else outcome for outcome in outcomes]

    def _above_floor(
        self, attempts: Sequence[_Attempt], outcomes: Sequence[_HeaderOrError]
    ) -> list[_HeaderOrError]:
        """Return the outcomes of creates that took longer than a listing of the floor counts.

        A record below the floor may have a key that was free once: its item is stored again.
        """
        problem = result_or_error(self.catalog.floor.learn)
        lowest = self.catalog.floor.lowest
        return [
            problem or ExistsError(f"{attempt.key} is below the floor")
            if isinstance(outcome, Header) and (problem or generation_of(attempt.key) < lowest)
            else outcome
            for attempt, outcome in zip(attempts, outcomes, strict=True)
        ]

    def _is_taken(self, attempt: _Attempt) -> bool:
        """Return whether a record is known under the ref: the same one, or another item under another key."""
        infos = self._adoptable(attempt.header.ref)
        # Under its own key it may not be durable yet: a create makes it durable on a local store.
        return any(info.key != attempt.key or info.key in self._stored_here for info in infos)

    def _adoptable(self, ref: str) -> list[RecordInfo]:
        """Return the known records of a ref that a new placeholder may rest on.

        The next gc deletes an expired record. One of the session below its floor may have a key that was free
        once, so that a stalled gc may still delete it.
        """
        own, lowest = RECORD.prefix(encode_part(self.name)), self.catalog.floor.lowest
        return [
            info
            for info in self.catalog.known(ref)
            if self._is_live(info) and not (info.key.startswith(own) and generation_of(info.key) < lowest)
        ]

    def _is_live(self, info: RecordInfo) -> bool:
        """Return whether a record has not expired, nor, by the known entries, any record that it quotes."""
        quoted = () if is_link(info.key) else info.quotes
        return not info.is_expired and all(
            any(not source.is_expired for source in self.catalog.known(ref)) for ref in quoted
        )

    def _refresh(self, refs: Iterable[str]) -> None:
        """Look up `refs`, and those that their records quote, in the store."""
        wanted = set(refs)
        self.catalog.refresh(wanted)
        quoted = {ref for each in wanted for info in self.catalog.known(each) for ref in info.quotes}
        if quoted - wanted:
            self.catalog.refresh(quoted - wanted)

    def _settle(self, attempt: _Attempt, outcome: _HeaderOrError) -> OffloadedItem | OffloadError:
        """Return the stored item: created, adopted, under another ref or as the next generation."""
        for _ in range(_MAX_TRIES):
            if not isinstance(outcome, ExistsError):
                break
            adopted = result_or_error(self._adopt, attempt, outcome)
            if not isinstance(adopted, CollisionError | CorruptError | NotFoundError):
                return adopted
            # After a deletion the next generation is free; after a collision or damage another ref is drawn.
            draw = attempt.draw + (not isinstance(adopted, NotFoundError))
            again = result_or_error(self._attempt, attempt.draft, draw) if draw < MAX_DRAWS else adopted
            if not isinstance(again, _Attempt):
                return again
            attempt, [outcome] = again, self._create([again])
        if isinstance(outcome, OffloadError):
            return outcome
        return self._offloaded(outcome, attempt.draft.content.counts, attempt.key, attempt.encoded.size)

    def _store_deleted_again(
        self, attempts: Sequence[_Attempt], items: list[OffloadedItem | OffloadError], adopted: set[int]
    ) -> list[OffloadedItem | OffloadError]:
        """Look for new tombstones of adopted records, as the last step; store deleted records again."""
        stored = {i: item for i, item in enumerate(items) if i in adopted and isinstance(item, OffloadedItem)}
        try:
            gone = self.gone(item.info for item in stored.values())
        except OffloadError as error:
            return [error if i in stored else item for i, item in enumerate(items)]
        for i, item in stored.items():
            if item.info.key in gone:
                deleted = ExistsError(f"{item.info.key} was deleted")
                items[i] = result_or_error(self._settle, attempts[i], deleted)
        return items

    def _adopt(self, attempt: _Attempt, outcome: ExistsError) -> OffloadedItem:
        """Return the existing record under the ref of an attempt if it is of the same item."""
        if isinstance(outcome, CollisionError):
            raise outcome
        infos = self._adoptable(attempt.header.ref)
        if not infos:
            raise self.missing(attempt.header.ref)
        try:
            same = self.find_same(infos, attempt.header, self._is_same)
        except NotFoundError:
            # The record of another session is gone: it takes no key of this one.
            for info in filter(lambda info: is_link(info.key), infos):
                self.catalog.drop(info.key)
            raise
        if same is None:
            raise CollisionError(f"{attempt.key} is the key of another item")
        info, record = same
        return self._offloaded(record.header, record.counts, info.key, info.stored_bytes)

    def _touch(self) -> None:
        """Record once an hour that the session is used, also if nothing new is stored."""
        now = time.monotonic()
        if now - self.facts.touched_at < _TOUCH_SECONDS:
            return
        self.facts.touched_at = now
        # Adopted records are stored, so a failure must not fail the turn.
        try:
            self.store.put(LAST_USE.key(session=encode_part(self.name)), b"", overwrite=True)
        except OffloadError as error:
            self._problem = StoreError(
                f"the last use of session {self.name!r} was not recorded, so a quota may take it for unused: "
                f"{error}"
            )
            self._problem.__cause__ = error

    def take_problem(self) -> OffloadError | None:
        """Return a failure since the last call that affected no record, None if there was none."""
        problem, self._problem = self._problem, None
        return problem

    def _offloaded(self, header: Header, counts: Counts, key: str, stored_bytes: int) -> OffloadedItem:
        info = RecordInfo(
            ref=header.ref,
            session=self.name,
            item_type=header.item_type,
            tool_name=header.tool_name,
            tool_use_id=header.tool_use_id,
            chars=counts.chars,
            tokens=counts.tokens,
            lines=counts.lines,
            bytes=counts.bytes,
            stored_bytes=stored_bytes,
            created_at=header.created_at,
            expires_at=None if header.ttl is None else header.created_at + header.ttl,
            key=key,
            title=header.title,
            agent_name=header.agent,
            quotes=header.quotes,
        )
        self.catalog.add(info)
        self.heads.note(key, header, counts)
        self._stored_here.add(key)
        return OffloadedItem(info, header.placeholder)
