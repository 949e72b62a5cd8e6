"""Writing the records of one session: each created once, adopted where it is there, never overwritten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from offload.codec import Codec, Content, Encoded, SpooledContent, StoredRecord, parse_sidecar
from offload.errors import CollisionError, CorruptError, ExistsError, NotFoundError, OffloadError
from offload.index import record_key
from offload.layout import LAST_USE, encode_part, sidecar_key
from offload.messages import Item
from offload.record import MAX_DRAWS, Counts, Header, ItemIdentity, RecordInfo, RefStyle, draw_ref
from offload.session._marked import latest_marks
from offload.session._reader import SessionReader
from offload.store import OffloadStore, put_many

# Other refs and later generations that are tried for one item, together.
_MAX_TRIES = 20
# A collector needs to know the time of last use by the hour.
_TOUCH_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Draft:
    """An item on its way into a record.

    Attributes:
        item: the item; its text is not read, the content is stored.
        content: its text, measured.
        render: returns the placeholder for a ref.
        ttl: for how many seconds the record is kept at least; None for good.
        summary: what a summarizer said of the text, or None.
        is_redacted: whether something was cut out of the text.
    """

    item: Item
    content: Content | SpooledContent
    render: Callable[[str], str]
    ttl: int | None = None
    summary: str | None = None
    is_redacted: bool = False

    @property
    def identity(self) -> ItemIdentity:
        """The identity of the item in its session."""
        return ItemIdentity(
            self.item.item_type, self.item.tool_use_id, self.content.counts.sha256, self.item.form
        )


@dataclass(frozen=True, slots=True)
class OffloadedItem:
    """A record that is durable in the store, and the text that stands for it from now on."""

    info: RecordInfo
    placeholder: str


@dataclass(frozen=True, slots=True)
class _Attempt:
    draft: Draft
    header: Header
    key: str
    encoded: Encoded
    draw: int


class Session(SessionReader):
    """The records of one agent conversation.

    Args:
        store: where they are kept.
        name: the session's name; any text, it becomes a key part by `offload.layout.encode_part`.
        codec: how new records are written; existing ones are read by the codec that their key names.
        refs: how the refs of new records look; one of any style is read.
    """

    def __init__(self, store: OffloadStore, name: str, codec: Codec, refs: RefStyle = "letters") -> None:
        super().__init__(store, name)
        self._codec = codec
        self._refs: RefStyle = refs
        self._placed: set[str] = set()
        self._touched_at = -float(_TOUCH_SECONDS)
        self._marked = latest_marks(store, encode_part(name))

    def write(self, drafts: Sequence[Draft]) -> list[OffloadedItem | OffloadError]:
        """Store every draft and return, in the same order, what became of each.

        A new record costs one create-only put, concurrent where the store can. A record that exists
        already with the same content is a success, and its placeholder is the one that it was stored
        with. Another item under the same ref makes for another draw, of a longer ref where there is one; an
        item whose record was collected is stored again as its next generation, under the same ref.
        """
        attempts = [self._attempt_or_error(draft) for draft in drafts]
        ready = [attempt for attempt in attempts if isinstance(attempt, _Attempt)]
        outcomes = self._looked_at(ready, self._create_many(ready))
        settled = [self._settle(*tried) for tried in zip(ready, outcomes, strict=True)]
        adopted = {i for i, outcome in enumerate(outcomes) if isinstance(outcome, ExistsError)}
        done = iter(self._proven(ready, settled, adopted) if adopted else settled)
        return [a if isinstance(a, OffloadError) else next(done) for a in attempts]

    def adopt(self, items: Sequence[ItemIdentity]) -> list[OffloadedItem | None]:
        """Return for each item the live record that is known to hold it, by whatever key, or None.

        Costs nothing where the catalog knows no ref of the items; else listings and a read of each header.
        """
        refs = [self.ref_of(item) for item in items]
        known = [ref for ref in refs if self.catalog.known(ref)]
        if not known:
            return [None] * len(items)
        # A record that a collector has marked is about to go.
        self.catalog.refresh(known)
        infos = [info for ref in dict.fromkeys(known) for info in self.catalog.known(ref)]
        records: dict[str, list[tuple[RecordInfo, StoredRecord]]] = {}
        for info, record in self.open_many([info for info in infos if not info.is_expired]):
            if not isinstance(record, OffloadError):
                records.setdefault(info.ref, []).append((info, record))
        found = [self._adopted(item, records.get(ref, ())) for item, ref in zip(items, refs, strict=True)]
        gone = self.gone(placed.info for placed in found if placed is not None)
        return [None if placed is None or placed.info.key in gone else placed for placed in found]

    def _adopted(
        self, item: ItemIdentity, found: Iterable[tuple[RecordInfo, StoredRecord]]
    ) -> OffloadedItem | None:
        for info, record in found:
            header = record.header
            if item == header.identity:
                self._confirm(info)
                return self._place(header, record.counts, info.key, info.stored_bytes)
        return None

    def _confirm(self, info: RecordInfo) -> None:
        """Have the store finish what who stored a record did not: a create that meets it makes it durable."""
        if self.store.durability == "power" and info.key not in self._placed:
            with suppress(ExistsError):
                self.store.put(info.key, b"")

    def gone(self, infos: Iterable[RecordInfo]) -> set[str]:
        """Return the keys of those records that are marked, over their time or not there; asks the store.

        The others count as used now. Raises `StoreError`.
        """
        refs = {info.key: info.ref for info in infos}
        if refs:
            # Before the marks are asked for: a collector marks first and looks for the last use then.
            self._touch()
            self.catalog.refresh(refs.values())
        known = [info for ref in set(refs.values()) for info in self.catalog.known(ref)]
        return refs.keys() - {info.key for info in known if info.stored_bytes and not info.is_expired}

    def was_collected_here(self) -> bool:
        """Tell whether this process marked records of the session since this was asked last."""
        before, self._marked = self._marked, latest_marks(self.store, encode_part(self.name))
        return before is not self._marked

    def ref_of(self, item: ItemIdentity, *, draw: int = 0) -> str:
        """Return the ref that an item draws in this session after `draw` collisions; see `draw_ref`."""
        return draw_ref(self.name, *item, style=self._refs, draw=draw)

    def _attempt_or_error(self, draft: Draft, draw: int = 0) -> _Attempt | OffloadError:
        """Return an attempt; one whose placeholder cannot be rendered is that item's failure alone."""
        try:
            return self._attempt(draft, draw)
        except OffloadError as error:
            return error

    def _attempt(self, draft: Draft, draw: int = 0) -> _Attempt:
        item, counts = draft.item, draft.content.counts
        ref = self.ref_of(draft.identity, draw=draw)
        header = Header(
            ref=ref,
            session=self.name,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            created_at=time.time(),
            sha256=counts.sha256,
            placeholder=draft.render(ref),
            form=item.form,
            ttl=draft.ttl,
            summary=draft.summary,
            redacted=draft.is_redacted,
        )
        key = record_key(header, counts, self._codec.suffix, self.catalog.next_generation(ref))
        return _Attempt(draft, header, key, self._codec.encode(header, draft.content), draw)

    def _create_many(self, attempts: Sequence[_Attempt]) -> list[_Attempt | OffloadError]:
        # Only what was placed here is known to be durable. Another's record, found in a listing, may not be:
        # a local store makes it so when the create meets it.
        known = [
            any(i.key in self._placed and not i.is_expired for i in self.catalog.known(a.header.ref))
            for a in attempts
        ]
        fresh = [a for a, is_known in zip(attempts, known, strict=True) if not is_known]
        if len(fresh) > 1 and not self._codec.has_sidecar:
            errors = put_many(self.store, [(a.key, a.encoded.body) for a in fresh])
            outcomes = [error or a for a, error in zip(fresh, errors, strict=True)]
        else:
            outcomes = [self._create(a) for a in fresh]
        done = iter(outcomes)
        return [
            ExistsError(f"{a.key} is known") if is_known else next(done)
            for a, is_known in zip(attempts, known, strict=True)
        ]

    def _create(self, attempt: _Attempt) -> _Attempt | OffloadError:
        try:
            if attempt.encoded.sidecar is not None:
                attempt = self._create_sidecar(attempt, attempt.encoded.sidecar)
            attempt.encoded.create(self.store, attempt.key)
        except OffloadError as error:
            return error
        return attempt

    def _create_sidecar(self, attempt: _Attempt, sidecar: bytes) -> _Attempt:
        """Store a header before its body; one that a writer left who got no further is taken over."""
        key = sidecar_key(attempt.key)
        try:
            self.store.put(key, sidecar)
        except ExistsError as taken:
            try:
                header = parse_sidecar(self.store.get(key))
            except NotFoundError:
                raise taken from None  # Its record was collected just now.
            if not header.is_same_item(attempt.header):
                raise CollisionError(f"{key} holds the header of another item") from None
            return replace(attempt, header=header)
        return attempt

    def _looked_at(
        self, attempts: Sequence[_Attempt], outcomes: list[_Attempt | OffloadError]
    ) -> list[_Attempt | OffloadError]:
        """Ask the store anew for what is taken: a record that a collector has marked is about to go."""
        taken = [a.header.ref for a, o in zip(attempts, outcomes, strict=True) if isinstance(o, ExistsError)]
        try:
            self.catalog.refresh(taken)
        except OffloadError as error:
            return [error if isinstance(outcome, ExistsError) else outcome for outcome in outcomes]
        return outcomes

    def _settle(self, attempt: _Attempt, outcome: _Attempt | OffloadError) -> OffloadedItem | OffloadError:
        """Turn the outcome of a create into a placed record.

        Our own is adopted, another's makes for another draw, after a collected one comes the next generation.
        """
        for _ in range(_MAX_TRIES):
            if not isinstance(outcome, ExistsError):
                break
            draw = attempt.draw
            try:
                return self._adopt(attempt, outcome)
            except (CollisionError, CorruptError):
                # Another's, or a torn one that nobody can read: neither is overwritten.
                draw += 1
            except NotFoundError:
                pass  # It was collected: the next generation is free, or the key is again.
            except OffloadError as error:
                return error
            if draw == MAX_DRAWS:
                break
            attempt, outcome = self._try_again(attempt, draw)
        if isinstance(outcome, OffloadError):
            return outcome
        counts = outcome.draft.content.counts
        return self._place(outcome.header, counts, outcome.key, outcome.encoded.size)

    def _try_again(self, attempt: _Attempt, draw: int) -> tuple[_Attempt, _Attempt | OffloadError]:
        made = self._attempt_or_error(attempt.draft, draw)
        if isinstance(made, OffloadError):
            return attempt, made
        [outcome] = self._looked_at([made], [self._create(made)])
        return made, outcome

    def _proven(
        self, attempts: Sequence[_Attempt], settled: list[OffloadedItem | OffloadError], adopted: set[int]
    ) -> list[OffloadedItem | OffloadError]:
        """Ask for the marks of what was adopted once more, after all else; what went is stored anew."""
        found = {
            i: placed
            for i, placed in enumerate(settled)
            if i in adopted and isinstance(placed, OffloadedItem)
        }
        try:
            gone = self.gone(placed.info for placed in found.values())
        except OffloadError as error:
            return [error if i in found else outcome for i, outcome in enumerate(settled)]
        for i, placed in found.items():
            if placed.info.key in gone:
                settled[i] = self._settle(attempts[i], ExistsError(f"{placed.info.key} was collected"))
        return settled

    def _adopt(self, attempt: _Attempt, outcome: ExistsError) -> OffloadedItem:
        """Take a record that stands under this ref already, if it is of the same item."""
        if isinstance(outcome, CollisionError):
            raise outcome
        # What is over its time goes with the next collection: the item is stored anew beside it.
        found = [info for info in self.catalog.known(attempt.header.ref) if not info.is_expired]
        if not found:
            raise self.missing(attempt.header.ref)
        for info in found:
            record = self.open(info)
            if record.header.is_same_item(attempt.header):
                return self._place(record.header, record.counts, info.key, info.stored_bytes)
        raise CollisionError(f"{attempt.key} is taken by another item")

    def _touch(self) -> None:
        """Tell collectors, once an hour, that the session is used though nothing new is stored in it."""
        now = time.monotonic()
        if now - self._touched_at < _TOUCH_SECONDS:
            return
        self._touched_at = now
        # A hint: what was adopted is stored, whether this succeeds or not.
        with suppress(OffloadError):
            self.store.put(LAST_USE.key(session=encode_part(self.name)), b"", overwrite=True)

    def _place(self, header: Header, counts: Counts, key: str, stored_bytes: int) -> OffloadedItem:
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
        )
        self.catalog.add(info)
        self._placed.add(key)
        return OffloadedItem(info, header.placeholder)
