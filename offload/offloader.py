"""Offloader: decide, store, verify, replace; and restore."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from offload.codec import get_codec
from offload.errors import ConfigError, MessageError, OffloadError, StoreError
from offload.history import Entry, History, Slot
from offload.messages import Item, Scan, adapter_for, role_of
from offload.placeholder import DefaultRenderer, PlaceholderRenderer
from offload.policy import Decision, ItemFacts, OffloadPolicy
from offload.preview import head_tail
from offload.record import ITEM_TYPES, ItemType, RecordInfo, encode_text
from offload.registry import open_store
from offload.restorer import Restorer
from offload.results import OffloadResult, Stats
from offload.session import Damage, Placed, Session, check_name, new_name
from offload.store import OffloadStore
from offload.tokens import TokenCounter, estimate_tokens, in_whole_numbers
from offload.tools import Tools, system_prompt
from offload.writer import ItemWriter, Outcome, Spared, Wanted

OnError = Literal["keep", "raise", "truncate"]

_log = logging.getLogger("offload")


class Offloader:
    """Takes the large parts of one session's messages out to a store, and brings them back.

    Safe to call from several threads; calls on one offloader run one after the other.

    Args:
        store: a path, a URL (`file://`, `memory://`, `s3://bucket/prefix`, any fsspec URL) or a store;
            without one, a folder under the user's data directory.
        session: name of the session; without one, `session_{YYYYMMDD_HHMMSS}_{6 random}`. Give the same
            name to go on with a session, from any process or machine that reaches the store.
        policy: what is offloaded; the default is `OffloadPolicy()`.
        storage_options: passed to the backend: credentials, endpoint, durability.
        placeholder: renders the text left in a message.
        codec: how records are written: "zstd", "json" or "raw".
        token_counter: counts tokens of a text; the default is an offline estimate.
        on_error: what `offload` does when an item cannot be stored: "keep" leaves the item in its
            message and reports, "raise" raises, "truncate" leaves its preview alone.

    Raises:
        ConfigError: an argument that cannot work: an unknown scheme, codec or option, a package that is
            not installed. Nothing is read or written before the first call that needs it.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | OffloadStore | None = None,
        *,
        session: str | None = None,
        policy: OffloadPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
        placeholder: PlaceholderRenderer | None = None,
        codec: str = "zstd",
        token_counter: TokenCounter | None = None,
        on_error: OnError = "keep",
    ) -> None:
        if on_error not in get_args(OnError):
            raise ConfigError(f"on_error is one of {get_args(OnError)}, not {on_error!r}")
        if policy is not None and not isinstance(policy, OffloadPolicy):
            raise ConfigError(f"policy is an OffloadPolicy, not {type(policy).__name__}")
        if placeholder is not None and not isinstance(placeholder, PlaceholderRenderer):
            raise ConfigError(f"placeholder has render and find_ref, {type(placeholder).__name__} has not")
        self.policy = OffloadPolicy() if policy is None else policy
        self.store = open_store(store, storage_options=storage_options)
        self.session = new_name() if session is None else check_name(session)
        self._on_error = on_error
        self._renderer = DefaultRenderer() if placeholder is None else placeholder
        self._count_tokens = estimate_tokens if token_counter is None else in_whole_numbers(token_counter)
        self._session = Session(self.store, self.session, get_codec(codec))
        self._writer = ItemWriter(self._session, self._renderer, self._count_tokens, self.policy.min_saving)
        self._restorer = Restorer(self._session, self._renderer)
        self._history = History()
        self._lock = threading.Lock()
        self.tools = Tools(self._session)

    def __repr__(self) -> str:
        return f"Offloader({self.store.url!r}, session={self.session!r})"

    def offload(self, messages: Sequence[Any]) -> OffloadResult:
        """Replace the large items of `messages` by placeholders, each after its record is durable.

        Call it with the whole conversation before each request to the model. What was replaced once
        is replaced by the same text again; work grows with what is new since the last call.

        Args:
            messages: the conversation, in Anthropic Messages or OpenAI chat format, as dicts or SDK
                objects. Never changed.

        Raises:
            MessageError: `messages` is no list; or, with `on_error="raise"`, one of them is malformed.
            OffloadError: with `on_error="raise"`, what the store raised.
        """
        given = _as_list(messages)
        errors: list[OffloadError] = []
        with self._lock:
            try:
                return self._turn(given, errors)
            except Exception as error:  # a part of the caller's own may raise anything
                if self._on_error == "raise":
                    raise
                self._history = History()
                self._report(_unexpected(error), errors)
                return OffloadResult(given, [], [], 0, 0, 0, errors)

    def _turn(self, messages: Sequence[Any], errors: list[OffloadError]) -> OffloadResult:
        try:
            for index in range(self._history.keep_common(messages), len(messages)):
                self._take_in(index, messages[index], errors)
            self._decide()
            self._replace(errors)
        finally:
            self._history.watch()
        return self._result(messages, errors)

    def offload_text(
        self,
        text: str,
        *,
        tool_name: str | None = None,
        tool_use_id: str | None = None,
        item_type: ItemType = "tool_result",
    ) -> str:
        """Offload one text, as a tool returns it; return its placeholder, or the text unchanged.

        The text stays if the policy keeps it, or wants it seen first, or if storing fails under
        `on_error="keep"`.

        Args:
            text: the text.
            tool_name: the tool that made it, for the policy and the placeholder.
            tool_use_id: the provider's id of the call. `restore` finds the text again only in a result
                of the same call.
            item_type: what kind of part of a message it will be.

        Raises:
            ConfigError: an unknown item type or a text that is none.
            OffloadError: with `on_error="raise"`, what the store raised.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text is a str, not {type(text).__name__}")
        if item_type not in ITEM_TYPES:
            raise ConfigError(f"item_type is one of {ITEM_TYPES}, not {item_type!r}")
        for name in (tool_name, tool_use_id):
            if name is not None and not isinstance(name, str):
                raise ConfigError(f"tool_name and tool_use_id are texts, not {type(name).__name__}")
        with self._lock:
            try:
                return self._offload_item(Item(None, item_type, text, tool_name, tool_use_id))
            except Exception as error:  # the same
                if self._on_error == "raise":
                    raise
                self._report(_unexpected(error), [])
                return text

    def _offload_item(self, item: Item) -> str:
        decision = self._judged(item, self._facts(0, item))
        if decision.action != "offload":
            return item.text
        [outcome] = self._writer.write(
            [Wanted(item, decision.item.tokens, decision.preview_chars, decision.ttl)]
        )
        if isinstance(outcome, Placed):
            return outcome.placeholder
        return item.text if isinstance(outcome, Spared) else self._fallback(item, decision, outcome, [])

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with every placeholder of this session replaced by what it stands for.

        `restore(offload(messages).messages) == messages`, also in another process or on another machine
        that has the store's URL and the session's name. A text that only looks like a placeholder is
        left as it is.

        Raises:
            MessageError: `messages` is no list.
            ExpiredError: what a placeholder stands for was collected.
            NotFoundError: a record vanished while it was read.
            CorruptError: a record is damaged.
            StoreError: the store could not be read.
        """
        given = _as_list(messages)
        with self._lock:
            return self._restorer.restore(given)

    async def aoffload(self, messages: Sequence[Any]) -> OffloadResult:
        """Do what `offload` does, in a thread."""
        import asyncio  # noqa: PLC0415 # 28 ms that only async callers pay, who have it loaded

        return await asyncio.to_thread(self.offload, messages)

    async def arestore(self, messages: Sequence[Any]) -> list[Any]:
        """Do what `restore` does, in a thread."""
        import asyncio  # noqa: PLC0415 # the same

        return await asyncio.to_thread(self.restore, messages)

    def records(self) -> list[RecordInfo]:
        """Return every record of the session, oldest first, from a fresh listing of the store."""
        return self._session.infos()

    def content(self, ref: str) -> Iterator[bytes]:
        """Yield the whole content of a record in order, each chunk checked, in constant memory.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: the record is damaged; what was yielded before is right.
        """
        return self._session.read(ref).content.chunks_from(0)[1]

    def stats(self) -> Stats:
        """Return what the session holds, from a fresh listing of the store."""
        infos = self.records()
        return Stats(
            session=self.session,
            records=len(infos),
            chars=sum(i.chars for i in infos),
            tokens=sum(i.tokens for i in infos),
            stored_bytes=sum(i.stored_bytes for i in infos),
            by_type=dict(Counter(i.item_type for i in infos)),
            by_tool=dict(Counter(i.tool_name for i in infos if i.tool_name is not None)),
        )

    def verify(self) -> list[Damage]:
        """Read every record of the session whole, every checksum compared; return those that are damaged.

        Raises:
            StoreError: the session could not be listed.
        """
        return list(self._session.verify())

    def prompt(self) -> str:
        """Return up to 15 lines for the system prompt that tell the model how to read items back."""
        return system_prompt()

    def _take_in(self, index: int, message: Any, errors: list[OffloadError]) -> None:
        """Add a message to the history; one that is malformed has no items and is reported once."""
        history = self._history
        try:
            is_answer = role_of(message, f"messages[{index}]") == "assistant"
            scan = adapter_for(message).scan(message, f"messages[{index}]", history.tool_names)
        except Exception as error:  # noqa: BLE001 # an object that stands for a message may raise anything
            self._report(_malformed(error, index), errors)
            is_answer, scan = False, Scan()
        slots = [Slot(item, self.policy.decide(self._facts(index, item)), item.text) for item in scan.items]
        fixed = sum(self._count_tokens(text) for text in scan.texts)
        history.add(Entry(message, slots, fixed, scan.calls, history.answers + is_answer))

    def _facts(self, index: int, item: Item) -> ItemFacts:
        return ItemFacts(
            message=index,
            block=item.block,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            chars=len(item.text),
            bytes=len(encode_text(item.text)) if self.policy.counts_bytes else None,
            tokens=self._count_tokens(item.text),
            is_error=item.is_error,
            is_stored=self._writer.knows(item.text),
            answers=0,
        )

    def _judged(self, item: Item, facts: ItemFacts) -> Decision:
        decision = self.policy.decide(facts)
        # Asked last: of a text that only claims to be a placeholder the store must be asked.
        if decision.action != "keep" and self._writer.is_placeholder(item):
            return self.policy.decide(facts._replace(is_stored=True))
        return decision

    def _decide(self) -> None:
        """Judge every open item; what is kept is closed, what waits stays open."""
        history = self._history
        still_open = []
        for index, slot in history.open_slots:
            answers = history.answers - history.entries[index].answers
            history.decide(slot, self._judged(slot.item, slot.decision.item._replace(answers=answers)))
            if slot.decision.action != "keep":
                still_open.append((index, slot))
        history.open_slots = still_open

    def _replace(self, errors: list[OffloadError]) -> None:
        """Store what is to be offloaded, then give its messages their outputs."""
        history = self._history
        due = [(i, slot) for i, slot in history.open_slots if slot.decision.action == "offload"]
        wanted = [
            Wanted(s.item, s.decision.item.tokens, s.decision.preview_chars, s.decision.ttl) for _, s in due
        ]
        try:
            for (_, slot), outcome in zip(due, self._writer.write(wanted), strict=True):
                self._apply(slot, outcome, errors)
        finally:
            for index in dict.fromkeys(i for i, slot in due if slot.is_replaced):
                self._render_output(index, errors)
            history.open_slots = [(i, slot) for i, slot in history.open_slots if not slot.is_settled]

    def _apply(self, slot: Slot, outcome: Outcome, errors: list[OffloadError]) -> None:
        decision, ref = slot.decision, None
        if isinstance(outcome, Placed):
            slot.text, slot.info, ref = outcome.placeholder, outcome.info, outcome.info.ref
        elif isinstance(outcome, Spared):
            decision = replace(decision, action="keep", reason=outcome.reason)
        else:
            slot.text = self._fallback(slot.item, decision, outcome, errors)
            decision = replace(decision, action="keep", reason=f"not stored: {outcome}")
        slot.is_settled = not isinstance(outcome, OffloadError)
        after = self._count_tokens(slot.text) if slot.is_replaced else decision.item.tokens
        self._history.decide(slot, replace(decision, ref=ref, tokens_after=after))

    def _fallback(
        self, item: Item, decision: Decision, error: OffloadError, errors: list[OffloadError]
    ) -> str:
        """Report that an item could not be stored; return what stands in the message then."""
        self._report(error, errors)
        return _truncated(item.text, decision.preview_chars) if self._on_error == "truncate" else item.text

    def _report(self, error: OffloadError, errors: list[OffloadError]) -> None:
        """Make one event of a failure: of a store that fails for many items, the first alone."""
        if isinstance(error, StoreError) and any(isinstance(e, StoreError) for e in errors):
            return
        errors.append(error)
        _log.warning("session %s: left in the message: %s", self.session, error)
        if self._on_error == "raise":
            raise error

    def _render_output(self, index: int, errors: list[OffloadError]) -> None:
        """Give a message its output; one that cannot be copied with a change stays as it is."""
        entry = self._history.entries[index]
        adapter = adapter_for(entry.message)
        output = entry.message
        try:
            for slot in entry.slots:
                if slot.is_replaced:
                    output = adapter.replace(output, slot.item.block, slot.text)
        except Exception as error:  # noqa: BLE001 # the same
            for slot in entry.slots:
                self._history.put_back(slot, "its message takes no other text")
            self._report(_malformed(error, index), errors)
            return
        self._history.set_output(index, output)

    def _result(self, messages: Sequence[Any], errors: list[OffloadError]) -> OffloadResult:
        history = self._history
        replaced = history.replaced_slots()
        return OffloadResult(
            messages=history.output(messages),
            records=[slot.info for slot in replaced if slot.info is not None],
            decisions=list(history.decisions),
            tokens_before=history.tokens,
            tokens_after=history.tokens - sum(slot.tokens_freed for slot in replaced),
            chars_freed=sum(slot.chars_freed for slot in replaced),
            errors=errors,
        )


def _truncated(text: str, preview_chars: int) -> str:
    preview = head_tail(text, preview_chars).text
    cut = f"{preview}\n[Cut: the rest of {len(text)} characters could not be stored.]"
    return cut if len(cut) < len(text) else text


def _as_list(messages: Sequence[Any]) -> list[Any]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise MessageError(f"expected a list of messages, got {type(messages).__name__}")
    return list(messages)


def _malformed(error: Exception, index: int) -> MessageError:
    if isinstance(error, MessageError):
        return error
    return MessageError(f"messages[{index}]: {type(error).__name__}: {error}")


def _unexpected(error: Exception) -> OffloadError:
    if isinstance(error, OffloadError):
        return error
    wrapped = OffloadError(f"unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
