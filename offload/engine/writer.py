"""From an item to its record and placeholder: measure, render, check that it pays, store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from offload.codec import Content, SpooledContent
from offload.engine.hooks import Hooks
from offload.engine.recognition import Recognition
from offload.errors import (
    ConfigError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.events import Observer, failure
from offload.messages import Item
from offload.placeholder import PlaceholderFacts, PlaceholderRenderer, WithMedia
from offload.preview import END_CHARS, Preview, preview_of
from offload.record import REF_LETTERS, ItemIdentity, RecordInfo, decode_text, encode_text
from offload.session import Draft, Placed, Session
from offload.tokens import TokenCounter

# Contents that are encoded and in flight at once.
_BATCH_CHARS = 16 * 1024 * 1024
_BATCH_ITEMS = 256
_SOME_REF = "x" * REF_LETTERS


class Wanted(NamedTuple):
    """An item that is to be stored.

    Attributes:
        item: the item.
        tokens: its tokens.
        preview_chars: how much of it the placeholder may show.
        ttl: for how many seconds its record is kept at least; None for good.
        asked: what it answers, for the preview; see `History.asked`.
        must_leave: whether it leaves whatever that saves: it looks like a placeholder and is none.
        is_vouched: whether its text stays where it is, and its record only says that it is no placeholder.
    """

    item: Item
    tokens: int
    preview_chars: int
    ttl: int | None
    asked: str = ""
    must_leave: bool = False
    is_vouched: bool = False


@dataclass(frozen=True, slots=True)
class Spared:
    """An item that stays because its placeholder would not be enough shorter; `reason` in words."""

    reason: str


Outcome = Placed | Spared | OffloadError


class _Measured(NamedTuple):
    """An item whose content is known, before anything is rendered or stored."""

    want: Wanted
    text: str
    content: Content
    identity: ItemIdentity


class ItemWriter:
    """Stores the items of one session.

    Remembers what it placed: an item that comes again gets the same placeholder, if a listing shows that no
    collector has marked its record.
    """

    def __init__(
        self,
        session: Session,
        renderer: PlaceholderRenderer,
        counter: TokenCounter,
        min_saving: int,
        *,
        recognition: Recognition,
        hooks: Hooks,
        observer: Observer,
    ) -> None:
        self._session = session
        self._renderer = WithMedia(renderer)
        self._counter = counter
        self._min_saving = min_saving
        self._recognition = recognition
        self._hooks = hooks
        self._observer = observer
        self._placed: dict[ItemIdentity, Placed] = {}

    def look_up_session(self) -> None:
        """Learn what the session holds, from one listing; a store that fails leaves it unknown."""
        with suppress(OffloadError):
            self._session.catalog.load()

    def has_lost(self, infos: Callable[[], Sequence[RecordInfo]]) -> bool:
        """Tell whether any of `infos()` is marked; asks only if this process marked some since."""
        return self._session.was_collected_here() and bool(self._session.gone(infos()))

    def was_stored(self, item: Item) -> str | None:
        """Return the ref of the record that the session is known to hold of `item`. Asks no store."""
        catalog = self._session.catalog
        if catalog.is_empty:
            return None
        try:
            text = self._to_store(item)
        except Exception:  # noqa: BLE001 # it is reported where the item is to be stored
            return None
        ref = self._session.ref_of(_identify(item, sha256(encode_text(text)).digest()))
        return ref if catalog.known(ref) else None

    def write(self, wanted: Sequence[Wanted]) -> Iterator[Outcome]:
        """Yield the outcome for each wanted item, in order.

        Once the store as a whole is found to fail the rest is not tried: one deadline is waited for.
        """
        failed: StoreError | None = None
        for batch in _batches(wanted):
            for outcome in [failed] * len(batch) if failed else self._write_batch(batch):
                if isinstance(outcome, StoreUnavailableError | StoreMissingError | StorePermissionError):
                    failed = outcome
                yield outcome

    def write_long(self, want: Wanted, content: SpooledContent) -> Placed | OffloadError:
        """Store `content`, the text of an item that is too long to hold it, whatever that saves."""
        if self._hooks.redact is not None:
            # What is to be cut out may stand anywhere: it takes the whole text.
            item = replace(want.item, text=decode_text(content.data))
            [outcome] = self._write_batch([want._replace(item=item)])
            return OffloadError(outcome.reason) if isinstance(outcome, Spared) else outcome
        identity = _identify(want.item, content.counts.sha256)
        found = self._standing({0: identity}).get(0)
        if found is not None:
            return self._remember(want, identity, found)
        text = content.text
        ends = text.text(0, END_CHARS) + text.text(text.chars - END_CHARS, text.chars)
        preview = preview_of(ends, want.preview_chars, asked=want.asked, left_out=text.chars - len(ends))
        [outcome] = self._session.write([self._draft(want, content, ends, preview)])
        return self._remember(want, identity, outcome)

    def _write_batch(self, batch: Sequence[Wanted]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        measured: dict[int, _Measured] = {}
        for number, want in enumerate(batch):
            found = self._measured(want)
            if isinstance(found, _Measured):
                measured[number] = found
            else:
                outcomes[number] = found
        outcomes |= self._adopted(measured)
        drafts: dict[int, Draft] = {}
        for number in [number for number in measured if number not in outcomes]:
            ready = self._drafted(measured[number])
            if isinstance(ready, Draft):
                drafts[number] = ready
            else:
                outcomes[number] = ready
        # An item that comes twice is stored once.
        first = {measured[number].identity: number for number in reversed(drafts)}
        written = self._session.write([drafts[number] for number in sorted(first.values())])
        by_identity = dict(zip((measured[n].identity for n in sorted(first.values())), written, strict=True))
        for number in drafts:
            want, identity = measured[number].want, measured[number].identity
            outcomes[number] = self._remember(want, identity, by_identity[identity])
        return [outcomes[number] for number in range(len(batch))]

    def _adopted(self, measured: Mapping[int, _Measured]) -> dict[int, Outcome]:
        """Return what stands already for items that left before, under whatever settings that was."""
        standing = self._standing({n: m.identity for n, m in measured.items()})
        return {n: self._remember(measured[n].want, measured[n].identity, o) for n, o in standing.items()}

    def _standing(self, identities: Mapping[int, ItemIdentity]) -> dict[int, Placed | OffloadError]:
        """Return the records of items that have a live one, or why that could not be asked."""
        again = self._still_placed(identities)
        new = {n: identity for n, identity in identities.items() if n not in again}
        try:
            found = self._session.adopt(list(new.values()))
        except OffloadError as error:
            return again | dict.fromkeys(new, error)
        return again | {n: placed for n, placed in zip(new, found, strict=True) if placed is not None}

    def _still_placed(self, identities: Mapping[int, ItemIdentity]) -> dict[int, Placed | OffloadError]:
        """Return what was placed before and, as a listing shows, no collector has taken since."""
        placed = {n: self._placed[identity] for n, identity in identities.items() if identity in self._placed}
        try:
            gone = self._session.gone(found.info for found in placed.values())
        except OffloadError as error:
            return dict.fromkeys(placed, error)
        for number in [n for n, found in placed.items() if found.info.key in gone]:
            del placed[number]
            self._placed.pop(identities[number], None)
        return dict(placed)

    def _remember(
        self, want: Wanted, identity: ItemIdentity, outcome: Placed | OffloadError
    ) -> Placed | OffloadError:
        """Note what was placed; what could not be restored, since no ref is found in it, replaces nothing."""
        if isinstance(outcome, OffloadError):
            return outcome
        if identity not in self._placed:
            try:
                self._check_found(outcome.placeholder, outcome.info.ref, want)
            except OffloadError as error:
                return error
            self._placed[identity] = outcome
            self._observer.stored(outcome.info, outcome.placeholder)
        if not want.is_vouched:
            self._recognition.note(want.item, outcome.placeholder)
        return outcome

    def _measured(self, want: Wanted) -> _Measured | Outcome:
        """Return the content of an item, or its outcome if it must not be stored."""
        item = want.item
        try:
            text = self._to_store(item)
            has_secrets = item.form is not None and self._has_secrets(item.form)
        except Exception as error:  # noqa: BLE001 # a hook of the caller's own may raise anything
            return failure("redact:", error)
        if item.form is not None and (text != item.text or has_secrets):
            return Spared("it would have to be redacted, and stands in several parts")
        content = Content.of(text, want.tokens)
        return _Measured(want, text, content, _identify(item, content.counts.sha256))

    def _drafted(self, measured: _Measured) -> Draft | Outcome:
        """Return the draft of an item that was not stored before, or its outcome if none is worth it."""
        want, text, content, _ = measured
        is_redacted = text != want.item.text
        if want.is_vouched:
            return self._draft(want, content, text, Preview("", 0), is_redacted=is_redacted)
        has_preview = want.item.media is None
        preview = preview_of(text, want.preview_chars, asked=want.asked) if has_preview else Preview("", 0)
        draft = self._draft(want, content, text, preview, is_redacted=is_redacted)
        spared = self._why_spared(draft, want)
        if spared is not None or self._hooks.summarizer is None or not has_preview:
            return spared or draft
        summary = self._hooks.summary(text)
        summed_up = self._draft(want, content, text, preview, summary, is_redacted=is_redacted)
        # A summary that takes what the placeholder would save is left out.
        return draft if self._why_spared(summed_up, want) else summed_up

    def _why_spared(self, draft: Draft, want: Wanted) -> Spared | OffloadError | None:
        """Return why a draft's placeholder is not worth it, or cannot be made; None if it is."""
        try:
            placeholder = draft.render(_SOME_REF)
            self._check_found(placeholder, _SOME_REF, want)
            saving = want.tokens - self._counter(placeholder)
        except OffloadError as error:
            return error
        except Exception as error:  # noqa: BLE001 # the same
            return failure("token_counter:", error)
        if want.must_leave or (saving >= self._min_saving and len(placeholder) < draft.content.counts.chars):
            return None
        return Spared(f"a placeholder would save {saving} tokens, under {self._min_saving}")

    def _to_store(self, item: Item) -> str:
        """Return what of an item may be stored. A caller cuts things out of texts, not out of images."""
        return self._hooks.redacted(item.text) if item.media is None else item.text

    def _check_found(self, placeholder: str, ref: str, want: Wanted) -> None:
        """Raise `ConfigError` if the renderer does not find the ref in a placeholder."""
        if placeholder == want.item.text:
            return  # It is vouched for: it names no ref of its own.
        if self._recognition.claim(replace(want.item, text=placeholder)) != ref:
            raise ConfigError(
                f"the placeholder's renderer does not find the ref of {ref} in what it rendered"
            )

    def _has_secrets(self, form: str) -> bool:
        """Tell whether the caller cuts something out of what a form holds beside the text."""
        if self._hooks.redact is None:
            return False
        shown = json.dumps(json.loads(form), ensure_ascii=False)
        return self._hooks.redacted(shown) != shown

    def _draft(
        self,
        want: Wanted,
        content: Content | SpooledContent,
        ends: str,
        preview: Preview,
        summary: str | None = None,
        *,
        is_redacted: bool = False,
    ) -> Draft:
        item, counts = want.item, content.counts

        def render(ref: str) -> str:
            if want.is_vouched:
                return item.text
            facts = PlaceholderFacts(
                ref,
                item.item_type,
                item.tool_name,
                counts.chars,
                counts.lines,
                preview,
                summary,
                is_redacted,
                counts.bytes,
                ends,
                item.media,
            )
            try:
                return self._renderer.render(facts)
            except Exception as error:
                raise failure("placeholder:", error) from error

        return Draft(
            item=item,
            content=content,
            render=render,
            ttl=want.ttl,
            summary=summary,
            is_redacted=is_redacted,
        )


def _identify(item: Item, digest: bytes) -> ItemIdentity:
    return ItemIdentity(item.item_type, item.tool_use_id, digest, item.form)


def _batches(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    batch: list[Wanted] = []
    chars = 0
    for want in wanted:
        if batch and (len(batch) == _BATCH_ITEMS or chars + len(want.item.text) > _BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(want)
        chars += len(want.item.text)
    if batch:
        yield batch
