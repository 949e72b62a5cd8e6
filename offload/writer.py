"""From an item to its record and placeholder: measure, render, check that it pays, store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from offload.codec import Content, SpooledContent
from offload.errors import (
    ConfigError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.hooks import Hooks
from offload.messages import Item
from offload.observe import Observer, failure
from offload.placeholder import PlaceholderFacts, PlaceholderRenderer, WithMedia
from offload.preview import END_CHARS, Preview, preview_of
from offload.record import REF_LETTERS, decode_text, encode_text
from offload.restorer import stands_for
from offload.session import Draft, Placed, Session
from offload.tokens import TokenCounter

# Contents that are encoded and in flight at once.
_BATCH_CHARS = 16 * 1024 * 1024
_BATCH_ITEMS = 256
_SOME_REF = "x" * REF_LETTERS
# So long what was placed is taken to be there still; a grace is longer.
_TRUSTED_SECONDS = 600.0


class Wanted(NamedTuple):
    """An item that the policy wants offloaded.

    Attributes:
        item: the item.
        tokens: its tokens.
        preview_chars: how much of it the placeholder may show.
        ttl: for how many seconds its record is kept at least; None for good.
        asked: what it answers, for the preview; see `History.asked`.
    """

    item: Item
    tokens: int
    preview_chars: int
    ttl: int | None
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Spared:
    """An item that stays because its placeholder would not be enough shorter; `reason` in words."""

    reason: str


class _Identity(NamedTuple):
    item_type: str
    tool_use_id: str | None
    form: str | None
    sha256: bytes


Outcome = Placed | Spared | OffloadError


class ItemWriter:
    """Stores the items of one session.

    Remembers what it placed: an item that comes again, in whatever turn, costs no request and gets the
    same placeholder.
    """

    def __init__(
        self,
        session: Session,
        renderer: PlaceholderRenderer,
        counter: TokenCounter,
        min_saving: int,
        *,
        hooks: Hooks,
        observer: Observer,
    ) -> None:
        self._session = session
        self._renderer = WithMedia(renderer)
        self._counter = counter
        self._min_saving = min_saving
        self._hooks = hooks
        self._observer = observer
        self._placed: dict[_Identity, tuple[Placed, float]] = {}
        self._placeholders: set[str] = set()
        self._refused: set[int] = set()

    def knows(self, text: str) -> bool:
        """Tell whether `text` is a placeholder that was made or proven here."""
        # Asked first: looking a text up in a set hashes the whole of it.
        return self._renderer.find_ref(text) is not None and text in self._placeholders

    def is_placeholder(self, item: Item) -> bool:
        """Tell whether the text of `item` is a placeholder: its record says so (rule R6).

        Costs nothing for one that was made here and for a text that does not look like one; else a
        listing and a read, once. A store that fails leaves it unproven: False.
        """
        if self.knows(item.text):
            return True
        ref = self._renderer.find_ref(item.text)
        if ref is None:
            return False
        if hash(item.text) in self._refused:
            return False
        try:
            is_ours = any(stands_for(header, item) for header in self._session.headers(ref))
        except StoreError:
            return False
        if is_ours:
            self._placeholders.add(item.text)
        else:
            self._refused.add(hash(item.text))
        return is_ours

    def claims(self, text: str) -> bool:
        """Tell whether `text` looks like a placeholder, proven or not. Asks the store nothing."""
        return self._renderer.find_ref(text) is not None

    def look_up_session(self) -> None:
        """Learn what the session holds, from one listing; a store that fails leaves it unknown."""
        with suppress(OffloadError):
            self._session.catalog.load()

    def was_stored(self, item: Item) -> bool:
        """Tell whether the session is known to hold a record of `item`. Asks the store nothing."""
        if self._session.catalog.is_empty:
            return False
        try:
            text = self._to_store(item)
        except Exception:  # noqa: BLE001 # it is reported where the item is to be stored
            return False
        return self._is_known(item, sha256(encode_text(text)).digest())

    def write(self, wanted: Sequence[Wanted]) -> Iterator[Outcome]:
        """Yield the outcome for each wanted item, in order.

        Once the store as a whole is found to fail the rest is not tried: one deadline is waited for.
        """
        failure: StoreError | None = None
        for batch in _batches(wanted):
            for outcome in [failure] * len(batch) if failure else self._write_batch(batch):
                if isinstance(outcome, StoreUnavailableError | StoreMissingError | StorePermissionError):
                    failure = outcome
                yield outcome

    def write_long(self, want: Wanted, content: SpooledContent) -> Placed | OffloadError:
        """Store `content`, the text of an item that is too long to hold it, whatever that saves."""
        if self._hooks.redact is not None:
            # What is to be cut out may stand anywhere: it takes the whole text.
            item = replace(want.item, text=decode_text(content.data))
            [outcome] = self._write_batch([want._replace(item=item)])
            return OffloadError(outcome.reason) if isinstance(outcome, Spared) else outcome
        identity = _identify(want.item, content.counts.sha256)
        placed = self._placed_lately(identity)
        if placed is not None:
            return placed
        text = content.text
        ends = text.text(0, END_CHARS) + text.text(text.chars - END_CHARS, text.chars)
        preview = preview_of(ends, want.preview_chars, asked=want.asked, left_out=text.chars - len(ends))
        [outcome] = self._session.write([self._draft(want, content, ends, preview)])
        return self._remember(identity, outcome)

    def _write_batch(self, batch: Sequence[Wanted]) -> list[Outcome]:
        prepared = [self._prepare(want) for want in batch]
        drafts = dict(ready for ready in prepared if isinstance(ready, tuple))
        outcomes = self._session.write(list(drafts.values()))
        written = {i: self._remember(i, outcome) for i, outcome in zip(drafts, outcomes, strict=True)}
        return [written[ready[0]] if isinstance(ready, tuple) else ready for ready in prepared]

    def _remember(self, identity: _Identity, outcome: Placed | OffloadError) -> Placed | OffloadError:
        """Note what was placed; what could not be restored, since no ref is found in it, replaces nothing."""
        if isinstance(outcome, OffloadError):
            return outcome
        if self._renderer.find_ref(outcome.placeholder) != outcome.info.ref:
            return ConfigError(f"the placeholder's renderer does not find the ref of {outcome.info.ref}")
        self._placed[identity] = outcome, time.monotonic()
        self._placeholders.add(outcome.placeholder)
        self._observer.stored(outcome.info, outcome.placeholder)
        return outcome

    def _placed_lately(self, identity: _Identity) -> Placed | None:
        """Return the record of an item if it was placed a short while ago; later the store is asked again.

        A collector may have taken it since.
        """
        placed, at = self._placed.get(identity, (None, 0.0))
        if placed is None or placed.info.is_over or time.monotonic() - at > _TRUSTED_SECONDS:
            return None
        return placed

    def _prepare(self, want: Wanted) -> tuple[_Identity, Draft] | Outcome:
        """Return the draft of an item and what identifies it, or its outcome if none is stored."""
        item = want.item
        try:
            text = self._to_store(item)
            has_secrets = item.form is not None and self._has_secrets(item.form)
        except Exception as error:  # noqa: BLE001 # a hook of the caller's own may raise anything
            return failure("redact:", error)
        if item.form is not None and (text != item.text or has_secrets):
            return Spared("it would have to be redacted, and stands in several parts")
        content = Content.of(text, want.tokens)
        counts = content.counts
        identity = _identify(item, counts.sha256)
        placed = self._placed_lately(identity)
        if placed is not None:
            return placed
        preview = Preview("", 0) if item.media else preview_of(text, want.preview_chars, asked=want.asked)
        draft = self._draft(want, content, text, preview, is_redacted=text != item.text)
        try:
            placeholder = self._rendered(draft)
        except Exception as error:  # noqa: BLE001 # the same
            return failure("placeholder:", error)
        saving = counts.tokens - self._counter(placeholder)
        if saving < self._min_saving or len(placeholder) >= counts.chars:
            return Spared(f"a placeholder would save {saving} tokens, under {self._min_saving}")
        has_summary = self._hooks.summarizer is not None and item.media is None
        if has_summary and not self._is_known(item, counts.sha256):
            summary = self._hooks.summary(text)
            draft = self._draft(want, content, text, preview, summary, is_redacted=draft.is_redacted)
        return identity, draft

    def _to_store(self, item: Item) -> str:
        """Return what of an item may be stored. A caller cuts things out of texts, not out of images."""
        return self._hooks.redacted(item.text) if item.media is None else item.text

    def _rendered(self, draft: Draft) -> str:
        """Return a placeholder like the one that will be. Raises `ConfigError` if it would not be found."""
        placeholder = draft.render(_SOME_REF)
        if self._renderer.find_ref(placeholder) != _SOME_REF:
            raise ConfigError("the renderer does not find the ref in what it rendered")
        return placeholder

    def _has_secrets(self, form: str) -> bool:
        """Tell whether the caller cuts something out of what a form holds beside the text."""
        if self._hooks.redact is None:
            return False
        shown = json.dumps(json.loads(form), ensure_ascii=False)
        return self._hooks.redacted(shown) != shown

    def _is_known(self, item: Item, digest: bytes) -> bool:
        """Tell whether a record of an item is known, whose placeholder it will have."""
        catalog = self._session.catalog
        if catalog.is_empty:
            return False
        return bool(catalog.known(self._session.ref_of(item.item_type, item.tool_use_id, digest, item.form)))

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
            return self._renderer.render(facts)

        return Draft(
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            content=content,
            form=item.form,
            render=render,
            ttl=want.ttl,
            summary=summary,
            is_redacted=is_redacted,
        )


def _identify(item: Item, digest: bytes) -> _Identity:
    return _Identity(item.item_type, item.tool_use_id, item.form, digest)


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
