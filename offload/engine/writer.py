"""The way of an item to its record and placeholder: measure, adopt a stored record, render, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from offload.base.binary import encoding_of, readable_text
from offload.base.identity import ItemIdentity
from offload.base.text import decode_text, without_colors
from offload.base.threads.locks import NO_FORK
from offload.engine.placeholder import PlaceholderFacts
from offload.engine.placeholder.default import MediaAwareRenderer
from offload.engine.policy import Decision
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.preview import Preview, preview_of
from offload.engine.preview.sample import END_CHARS, MIDDLE_CHARS
from offload.engine.recognition import Recognition
from offload.engine.settings.hooks import host_call
from offload.engine.settings.options import Options
from offload.errors import (
    ConfigError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
    failure,
    result_or_error,
    unexpected,
)
from offload.messages.base import Item
from offload.records.codec.content import TextContent
from offload.records.codec.spooled import SpooledContent
from offload.records.observer import Observer
from offload.records.record.retrieval import is_answer
from offload.records.session import Draft, Session
from offload.records.session.drafts import OffloadedItem
from offload.storage.store import in_groups

# Contents that are encoded and in flight together.
_BATCH_CHARS = 16 * 1024 * 1024
_BATCH_ITEMS = 256
_NO_PREVIEW = Preview("", 0)

# The line of a placeholder on the table in a text, from the text and whether it is whole.
TableLine = Callable[[str, bool], str]


class WriteRequest(NamedTuple):
    """An item to store, with its tokens, preview size and ttl in the decision on it.

    Attributes:
        query: the text that its preview is ranked against; see `Log.query`.
        min_saving: tokens that its placeholder must free, unless `is_forced`.
        is_forced: whether it is stored even if the placeholder saves nothing, as a look-alike is.
        keeps_text: whether its text is kept in the message; the record proves that it is not a placeholder.
        content: its text if it is too long to hold, to be stored in any case.
        ref: the ref of the record that the session holds of it; None if it is not known to hold one.
        placeholder: the text that replaces it already; None to render one.
        agent: the name of its agent; by default that of the options.
    """

    item: Item
    decision: Decision
    query: str = ""
    min_saving: int = 0
    is_forced: bool = False
    keeps_text: bool = False
    content: SpooledContent | None = None
    ref: str | None = None
    placeholder: str | None = None
    agent: str | None = None


class Skipped(msgspec.Struct, frozen=True):
    """An item that is kept because a placeholder would not pay or is impossible."""

    reason: Reason


WriteOutcome = OffloadedItem | Skipped | OffloadError


class _Measured(NamedTuple):
    """An item whose content is known, and so its text, ref and title; `ends` has the ends of a long one."""

    request: WriteRequest
    content: TextContent | SpooledContent
    ends: str
    identity: ItemIdentity
    ref: str
    title: str | None

    @property
    def encoding(self) -> str | None:
        return encoding_of(self.ends, self.left_out) if self.request.item.media is None else None

    @property
    def left_out(self) -> int:
        return self.content.counts.chars - len(self.ends)

    @property
    def is_redacted(self) -> bool:
        return isinstance(self.content, TextContent) and self.ends != self.request.item.text


class ItemWriter:
    """Stores items of one session and renders their placeholders.

    A repeated item gets the same placeholder, unless its record was deleted since.
    """

    def __init__(
        self,
        session: Session,
        options: Options,
        recognition: Recognition,
        observer: Observer,
        table_line: TableLine,
    ) -> None:
        self._session = session
        self._renderer = MediaAwareRenderer(options.placeholder)
        self._count_tokens = options.count_tokens
        self._hooks = options
        self._recognition = recognition
        self._observer = observer
        self._table_line = table_line
        self._stored: dict[ItemIdentity, OffloadedItem] = {}

    def write(self, requests: Sequence[WriteRequest], *, is_listed: bool = False) -> Iterator[WriteOutcome]:
        """Yield the outcome of each request, in order; `is_listed` as in `Session.adopt`.

        If the store fails as a whole, the remaining requests are not tried, so only one deadline passes.
        """
        failed: StoreError | None = None
        for batch in in_groups(requests, lambda r: len(r.item.text), most=_BATCH_CHARS, count=_BATCH_ITEMS):
            for outcome in [failed] * len(batch) if failed else self._write_each(batch, is_listed=is_listed):
                if isinstance(outcome, StoreUnavailableError | StoreMissingError | StorePermissionError):
                    failed = outcome
                yield outcome

    def _write_each(self, batch: Sequence[WriteRequest], *, is_listed: bool) -> list[WriteOutcome]:
        """Write a batch at once; if that fails as a whole, write each item alone."""
        try:
            return self._write_batch(batch, is_listed=is_listed)
        except Exception as error:  # noqa: BLE001 # each item is tried alone
            if len(batch) == 1:
                return [unexpected(error)]
        return [outcome for request in batch for outcome in self._write_each([request], is_listed=False)]

    def skipped(self, request: WriteRequest) -> Skipped | None:
        """Return why `write` would not store a new item, without storing it; None if it would try."""
        measured = self._measured(request)
        outcome = result_or_error(self._drafted, measured) if isinstance(measured, _Measured) else measured
        return outcome if isinstance(outcome, Skipped) else None

    def _write_batch(self, batch: Sequence[WriteRequest], *, is_listed: bool) -> list[WriteOutcome]:
        # The refs of items depend on it.
        problem = result_or_error(self._session.catalog.learn)
        if problem is not None:
            return [problem] * len(batch)
        results = [result_or_error(self._measured, request) for request in batch]
        measured = [result for result in results if isinstance(result, _Measured)]
        outcomes: dict[ItemIdentity, WriteOutcome] = {
            **self._already_stored({m.identity: m.ref for m in measured}, is_listed=is_listed)
        }
        # The placeholder of each draft, which was checked.
        drafted: dict[ItemIdentity, str] = {}

        def drafts() -> Iterator[Draft]:
            for item in measured:
                # An item that comes twice is drafted and stored once.
                if item.identity not in outcomes and item.identity not in drafted:
                    draft = result_or_error(self._drafted, item)
                    if isinstance(draft, Draft):
                        drafted[item.identity] = draft.placeholder
                        yield self._quoting(item, draft)
                    else:
                        outcomes[item.identity] = draft

        outcomes |= zip(drafted, self._session.write(drafts()), strict=True)
        return [
            result_or_error(self._remember, result, outcomes[result.identity], drafted.get(result.identity))
            if isinstance(result, _Measured)
            else result
            for result in results
        ]

    def _already_stored(
        self, wanted: Mapping[ItemIdentity, str], *, is_listed: bool
    ) -> dict[ItemIdentity, OffloadedItem | OffloadError]:
        """Return the live records of items, stored under any settings, or why they could not be read.

        The items are given with their refs. Those that this writer stored have a record as long as the store
        does not say otherwise.
        """
        stored = {identity: self._stored[identity] for identity in wanted if identity in self._stored}
        outcomes: dict[ItemIdentity, OffloadedItem | OffloadError] = {**stored}
        gone = set[str]()
        with suppress(StoreError):
            # A fresh listing shows what was deleted since this writer stored it.
            gone = self._session.gone(item.info for item in stored.values())
        for identity in [identity for identity, item in stored.items() if item.info.key in gone]:
            del outcomes[identity]
            self._stored.pop(identity, None)
        new = {identity: ref for identity, ref in wanted.items() if identity not in outcomes}
        try:
            return outcomes | self._session.adopt(new, is_listed=is_listed)
        except OffloadError as error:
            return outcomes | dict.fromkeys(new, error)

    def _remember(self, measured: _Measured, stored: WriteOutcome, checked: str | None) -> WriteOutcome:
        """Note an item if it is stored; a placeholder in which no ref is found could not be restored.

        In the placeholder `checked` it is known to be found. Raises `OffloadError` if it is not.
        """
        if not isinstance(stored, OffloadedItem):
            return stored
        request, identity = measured.request, measured.identity
        if identity not in self._stored:
            if stored.placeholder != checked:
                self._check_ref(request, stored.placeholder, stored.info.ref)
            self._stored[identity] = stored
            self._observer.stored(stored.info, stored.placeholder)
        # After a rewind no entry of the journal may name the record.
        self._observer.uses(stored.info)
        if not request.keeps_text:
            self._recognition.note(request.item, stored.placeholder)
        return stored

    def _measured(self, request: WriteRequest) -> _Measured | WriteOutcome:
        """Return the content of an item, or the outcome if it must not be stored.

        Raises `OffloadError` if a hook failed.
        """
        item, content = request.item, request.content
        if content is not None:
            if self._hooks.redact is None:
                whole = content.text
                ends = whole.text(0, END_CHARS) + whole.text(whole.chars - END_CHARS, whole.chars)
                return self._identified(request, content, ends, self._hooks.title(item, ends))
            # The hook needs the whole text: what it removes may be anywhere.
            item = replace(item, text=decode_text(content.data))
            request = request._replace(item=item, content=None, is_forced=False)
        text = self._hooks.to_store(item)
        has_secrets = item.form is not None and self._hooks.redacted(item.form) != item.form
        title = self._hooks.title(item, readable_text(text))
        if item.form is not None and (text != item.text or has_secrets):
            return Skipped(Reason(ReasonKind.NOT_REDACTED))
        return self._identified(request, TextContent.of(text, request.decision.item.tokens), text, title)

    def _identified(
        self, request: WriteRequest, content: TextContent | SpooledContent, ends: str, title: str | None
    ) -> _Measured:
        identity = self._session.identity_of(request.item, content.counts.sha256)
        ref = request.ref or self._session.ref_of(identity)
        return _Measured(request, content, ends, identity, ref, title)

    def _quoting(self, measured: _Measured, draft: Draft) -> Draft:
        """Return the draft of an answer without the parts that records have already."""
        content, item = measured.content, draft.item
        if not (isinstance(content, TextContent) and is_answer(item.item_type, item.tool_name)):
            return draft
        with NO_FORK:
            from offload.engine.quoting import quoting  # noqa: PLC0415 # only answers need it

        content, refs = quoting(self._session, item, content, measured.ends)
        return replace(draft, content=content, quotes=tuple(refs))

    def _drafted(self, measured: _Measured) -> Draft | Skipped | OffloadError:
        """Return the draft of a new item, or the outcome if a placeholder does not pay.

        Raises `OffloadError` if the renderer failed.
        """
        request, left_out = measured.request, measured.left_out
        text = readable_text(measured.ends, left_out)
        if request.keeps_text or request.placeholder is not None:
            return self._draft(measured, _NO_PREVIEW)
        has_preview = request.item.media is None
        chars = request.decision.preview_chars
        preview = (
            preview_of(
                text,
                chars,
                query=request.query,
                left_out=left_out,
                middle=_middle_of(text, measured.content),
                names_chars=request.decision.names_chars,
            )
            if has_preview
            else _NO_PREVIEW
        )
        table = self._table_line(without_colors(text), not left_out) if has_preview and chars else ""
        draft = self._draft(measured, preview, table)
        problem = self._why_not(request, draft)
        if problem is not None or self._hooks.summarizer is None or not has_preview or request.content:
            return problem or draft
        summarized = result_or_error(self._draft, measured, preview, table, self._hooks.summary(text))
        # A summary that takes up what the placeholder would save is dropped.
        if isinstance(summarized, OffloadError) or self._why_not(request, summarized):
            return draft
        return summarized

    def _why_not(self, request: WriteRequest, draft: Draft) -> Skipped | OffloadError | None:
        """Return why the placeholder of a draft does not pay or cannot be made; None if it is fine."""
        try:
            self._check_ref(request, draft.placeholder, draft.ref)
        except OffloadError as error:
            return error
        try:
            saving = request.decision.item.tokens - self._count_tokens(draft.placeholder)
        except Exception as error:  # noqa: BLE001 # a token counter may raise anything; only its item fails
            return failure("token_counter:", error, draft.placeholder)
        is_shorter = saving >= request.min_saving and len(draft.placeholder) < draft.content.counts.chars
        if request.is_forced or is_shorter:
            return None
        return Skipped(Reason(ReasonKind.LITTLE_SAVED, saving, request.min_saving))

    def _check_ref(self, request: WriteRequest, placeholder: str, ref: str) -> None:
        """Raise `ConfigError` if no ref is found in a placeholder, also of another renderer."""
        if placeholder == request.item.text:
            return
        claim = self._recognition.claim(request.item, placeholder)
        if claim is None or ref not in claim.refs:
            raise ConfigError(
                f"placeholder: find_ref() must return {ref!r} for the text that render() returned"
            )

    def _draft(
        self, measured: _Measured, preview: Preview, table: str = "", summary: str | None = None
    ) -> Draft:
        request = measured.request

        def render(ref: str) -> str:
            if request.keeps_text:
                return request.item.text
            if request.placeholder is not None and ref == measured.ref:
                return request.placeholder
            return self._render(measured, ref, preview, table, summary)

        return Draft(
            item=request.item,
            content=measured.content,
            ref=measured.ref,
            placeholder=render(measured.ref),
            render=render,
            ttl=request.decision.ttl,
            summary=summary,
            is_redacted=measured.is_redacted,
            title=measured.title,
            agent=request.agent or self._hooks.agent_name,
            encoding=measured.encoding,
        )

    def _render(
        self, measured: _Measured, ref: str, preview: Preview, table: str, summary: str | None
    ) -> str:
        item, counts = measured.request.item, measured.content.counts
        facts = PlaceholderFacts(
            ref=ref,
            item_type=item.item_type,
            tool_name=item.tool_name,
            chars=counts.chars,
            lines=counts.lines,
            preview=preview,
            summary=summary,
            is_redacted=measured.is_redacted,
            bytes=counts.bytes,
            ends=measured.ends,
            table=table,
            media=item.media,
            call=self._call_of(item),
            encoding=measured.encoding,
        )
        try:
            with host_call():
                return self._renderer.render(facts)
        except Exception as error:
            raise failure("placeholder:", error, measured.ends) from error

    def _call_of(self, item: Item) -> str:
        """Return the call that an answer answers, "" if it cannot be repeated from the placeholder."""
        if item.call is None or not is_answer(item.item_type, item.tool_name):
            return ""
        with NO_FORK:
            from offload.engine.placeholder.answers import call_text  # noqa: PLC0415 # only answers need it

        text = call_text(item.call.name, item.call.fields)
        return text if self._hooks.redacted(text) == text else ""


def _middle_of(text: str, content: TextContent | SpooledContent) -> str:
    """Return what follows the first end of a long content, up to `MIDDLE_CHARS` of it."""
    is_whole = isinstance(content, TextContent)
    end = min((len(text) if is_whole else content.counts.chars) - END_CHARS, END_CHARS + MIDDLE_CHARS)
    if end <= END_CHARS:
        return ""
    return text[END_CHARS:end] if isinstance(content, TextContent) else content.text.text(END_CHARS, end)
