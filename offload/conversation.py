"""What becomes of the messages of one conversation, turn by turn: decide, store, replace."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from offload.codec import SpooledContent
from offload.errors import MessageError, OffloadError, StoreError
from offload.history import Entry, History, Slot
from offload.messages import Item, Scan, adapter_for, role_of
from offload.policy import Decision, ItemFacts, OffloadPolicy
from offload.preview import head_tail
from offload.record import Counts, decode_text, encode_text
from offload.results import OffloadResult
from offload.session import Placed
from offload.sink import Taken
from offload.tokens import TokenCounter
from offload.writer import ItemWriter, Outcome, Spared, Wanted

OnError = Literal["keep", "raise", "truncate"]

_log = logging.getLogger("offload")


class Conversation:
    """The messages of one session as they grow, and what was made of them.

    Args:
        session: name of the session, for the log.
        policy: what is offloaded.
        writer: stores items.
        count_tokens: counts tokens of a text.
        on_error: what becomes of an item that cannot be stored; see `Offloader`.
    """

    def __init__(
        self,
        session: str,
        policy: OffloadPolicy,
        writer: ItemWriter,
        count_tokens: TokenCounter,
        on_error: OnError,
    ) -> None:
        self._name = session
        self._policy = policy
        self._writer = writer
        self._count_tokens = count_tokens
        self._on_error = on_error
        self._history = History()

    def offload(self, messages: Sequence[Any]) -> OffloadResult:
        """Return the messages with their large items replaced; see `Offloader.offload`."""
        errors: list[OffloadError] = []
        try:
            return self._turn(messages, errors)
        except Exception as error:  # a part of the caller's own may raise anything
            if self._on_error == "raise":
                raise
            self._history = History()
            self._report(_unexpected(error), errors)
            return OffloadResult(list(messages), [], [], 0, 0, 0, errors)

    def offload_item(self, item: Item) -> Taken:
        """Offload one item if the policy wants it."""
        try:
            return self._offload_item(item)
        except Exception as error:  # the same
            if self._on_error == "raise":
                raise
            wrapped = _unexpected(error)
            self._report(wrapped, [])
            return Taken(item.text, error=wrapped)

    def offload_long(self, item: Item, content: SpooledContent) -> Taken:
        """Offload an item whose text is `content`, too long for a message, whatever the policy says of it."""
        decision = self._policy.decide(_long_facts(item, content.counts))
        try:
            outcome = self._writer.write_long(_wanted(item, decision), content)
        except Exception as error:
            if self._on_error == "raise":
                raise
            outcome = _unexpected(error)
        if isinstance(outcome, Placed):
            return Taken(outcome.placeholder, outcome.info)
        whole = replace(item, text=decode_text(content.data))
        return Taken(self._fallback(whole, decision, outcome, []), error=outcome)

    def _turn(self, messages: Sequence[Any], errors: list[OffloadError]) -> OffloadResult:
        try:
            for index in range(self._history.keep_common(messages), len(messages)):
                self._take_in(index, messages[index], errors)
            self._decide()
            self._replace(errors)
        finally:
            self._history.watch()
        return self._result(messages, errors)

    def _offload_item(self, item: Item) -> Taken:
        decision = self._judged(item, self._facts(0, item))
        if decision.action != "offload":
            return Taken(item.text)
        [outcome] = self._writer.write([_wanted(item, decision)])
        if isinstance(outcome, Placed):
            return Taken(outcome.placeholder, outcome.info)
        if isinstance(outcome, Spared):
            return Taken(item.text)
        return Taken(self._fallback(item, decision, outcome, []), error=outcome)

    def _take_in(self, index: int, message: Any, errors: list[OffloadError]) -> None:
        """Add a message to the history; one that is malformed has no items and is reported once."""
        history = self._history
        try:
            is_answer = role_of(message, f"messages[{index}]") == "assistant"
            scan = adapter_for(message).scan(message, f"messages[{index}]", history.tool_names)
        except Exception as error:  # noqa: BLE001 # an object that stands for a message may raise anything
            self._report(_malformed(error, index), errors)
            is_answer, scan = False, Scan()
        slots = [Slot(item, self._policy.decide(self._facts(index, item)), item.text) for item in scan.items]
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
            bytes=len(encode_text(item.text)) if self._policy.counts_bytes else None,
            tokens=self._count_tokens(item.text),
            is_error=item.is_error,
            is_stored=self._writer.knows(item.text),
            answers=0,
        )

    def _judged(self, item: Item, facts: ItemFacts) -> Decision:
        decision = self._policy.decide(facts)
        # Asked last: of a text that only claims to be a placeholder the store must be asked.
        if decision.action != "keep" and self._writer.is_placeholder(item):
            return self._policy.decide(facts._replace(is_stored=True))
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
        wanted = [_wanted(slot.item, slot.decision) for _, slot in due]
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
        _log.warning("session %s: left in the message: %s", self._name, error)
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


def _wanted(item: Item, decision: Decision) -> Wanted:
    return Wanted(item, decision.item.tokens, decision.preview_chars, decision.ttl)


def _long_facts(item: Item, counts: Counts) -> ItemFacts:
    return ItemFacts(
        message=0,
        block=None,
        item_type=item.item_type,
        tool_name=item.tool_name,
        tool_use_id=item.tool_use_id,
        chars=counts.chars,
        bytes=counts.bytes,
        tokens=counts.tokens,
        is_error=False,
        is_stored=False,
        answers=0,
    )


def _truncated(text: str, preview_chars: int) -> str:
    preview = head_tail(text, preview_chars).text
    cut = f"{preview}\n[Cut: the rest of {len(text)} characters could not be stored.]"
    return cut if len(cut) < len(text) else text


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
