"""What becomes of the messages of one conversation, turn by turn: decide, store, replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from offload.codec import SpooledContent
from offload.errors import MessageError, OffloadError, StoreError
from offload.history import Entry, History, Slot
from offload.hooks import Hooks
from offload.messages import Item, Scan, adapter_for, role_of
from offload.observe import Observer, failure, observed
from offload.policy import Decision, ItemFacts, OffloadPolicy, over_budget, saving, swept
from offload.preview import head_tail
from offload.record import Counts, decode_text, encode_text
from offload.results import CacheReport, OffloadResult
from offload.session import Placed
from offload.sink import Taken
from offload.tokens import TokenCounter
from offload.writer import ItemWriter, Outcome, Spared, Wanted

# How much of a text is kept to know what was asked for.
_SAID_CHARS = 4_000

OnError = Literal["keep", "raise", "truncate"]


class Conversation:
    """The messages of one session as they grow, and what was made of them.

    Args:
        observer: told what is done and what fails.
        policy: what is offloaded.
        writer: stores items.
        count_tokens: counts tokens of a text.
        on_error: what becomes of an item that cannot be stored; see `Offloader`.
        hooks: the caller's own functions.
    """

    def __init__(
        self,
        observer: Observer,
        policy: OffloadPolicy,
        writer: ItemWriter,
        count_tokens: TokenCounter,
        *,
        on_error: OnError,
        hooks: Hooks,
    ) -> None:
        self._observer = observer
        self._policy = policy
        self._writer = writer
        self._count_tokens = count_tokens
        self._on_error = on_error
        self._hooks = hooks
        self._history = History()
        self._pinned: frozenset[str] = frozenset()

    @observed("offload", OffloadResult.figures)
    def offload(self, messages: Sequence[Any], pinned: Iterable[str] = ()) -> OffloadResult:
        """Return the messages with their large items replaced; see `Offloader.offload`."""
        errors: list[OffloadError] = []
        self._pinned = frozenset(pinned)
        try:
            return self._turn(messages, errors)
        except Exception as error:  # a part of the caller's own may raise anything
            if self._on_error == "raise":
                raise
            self._history = History()
            self._report(_unexpected(error), errors)
            return OffloadResult(list(messages), [], [], 0, 0, 0, errors)

    @observed("offload_text")
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

    @observed("offload_text")
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
        history = self._history
        try:
            known = history.keep_common(messages)
            for index in range(known, len(messages)):
                self._take_in(index, messages[index], errors)
            self._recall(known)
            self._decide()
            self._decide_together(known)
            late = [slot for i, slot in history.open_slots if i < known and _leaves(slot)]
            self._replace(errors)
        finally:
            history.watch()
        return self._result(messages, errors, history.cache_report(known, late))

    def _offload_item(self, item: Item) -> Taken:
        decision = self._judged(item, self._facts(0, item))
        if decision.action != "offload" or not self._hooks.lets_go(decision.item):
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
            role = role_of(message, f"messages[{index}]")
            scan = adapter_for(message).scan(message, f"messages[{index}]", history.tool_names)
        except Exception as error:  # noqa: BLE001 # an object that stands for a message may raise anything
            self._report(_malformed(error, index), errors)
            role, scan = "", Scan()
        slots = [Slot(item, self._policy.decide(self._facts(index, item)), item.text) for item in scan.found]
        fixed = sum(self._count_tokens(text) for text in scan.texts)
        # In some formats one answer is several messages in a row.
        answers = history.answers + (role == "assistant" and history.role != "assistant")
        history.add(Entry(message, slots, fixed, scan.calls, answers, role, _said(history, role, scan)))

    def _facts(self, index: int, item: Item) -> ItemFacts:
        return ItemFacts(
            message=index,
            block=item.block,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            chars=len(item.text),
            bytes=item.media.bytes if item.media else self._bytes(item.text),
            tokens=item.media.tokens if item.media else self._count_tokens(item.text),
            is_error=item.is_error,
            is_stored=self._writer.knows(item.text),
            answers=0,
            is_pinned=item.tool_use_id in self._pinned,
            is_pending=item.is_pending,
            media_type=item.media.media_type if item.media else None,
        )

    def _bytes(self, text: str) -> int | None:
        return len(encode_text(text)) if self._policy.counts_bytes else None

    def _judged(self, item: Item, facts: ItemFacts) -> Decision:
        decision = self._policy.decide(facts)
        # Asked last: of a text that only claims to be a placeholder the store must be asked.
        if decision.action != "keep" and self._writer.is_placeholder(item):
            return self._policy.decide(facts._replace(is_stored=True))
        return decision

    def _recall(self, known: int) -> None:
        """Find new items that left before, in another process or before a rollback: they stay away."""
        history = self._history
        # More than the one answer of a turn: another process went on with the session, or it was rolled back.
        if history.answers - (history.entries[known - 1].answers if known else -1) > 1:
            self._writer.look_up_session()
        for entry in history.entries[known:]:
            for slot in entry.slots:
                facts = slot.decision.item
                may_leave = slot.decision.action == "wait" or slot.decision.is_below or facts.is_pinned
                if (
                    may_leave
                    and facts.tokens >= self._policy.min_saving
                    and self._writer.was_stored(slot.item)
                ):
                    history.decide(slot, self._policy.decide(facts._replace(was_stored=True)))

    def _decide(self) -> None:
        """Judge every open item; what is kept is closed, what waits stays open."""
        history, policy = self._history, self._policy
        together = policy.turn_budget_tokens is not None or policy.sweep is not None
        still_open = []
        for index, slot in history.open_slots:
            is_pinned = slot.item.tool_use_id in self._pinned
            facts = history.facts(index, slot)._replace(is_pinned=is_pinned)
            history.decide(slot, self._judged(slot.item, facts))
            if slot.decision.action != "keep" or is_pinned:
                still_open.append((index, slot))
            elif together and slot.decision.is_below and not self._writer.claims(slot.item.text):
                history.small_slots.append((index, slot))
        history.open_slots = still_open

    def _decide_together(self, known: int) -> None:
        """Judge what may leave with others: by the budget of each turn with new messages, by a sweep."""
        history, policy = self._history, self._policy
        if policy.turn_budget_tokens is not None:
            for answers in dict.fromkeys(entry.answers for entry in history.entries[known:]):
                turn = [(i, s) for i, s in history.small_slots if history.entries[i].answers == answers]
                self._open(turn, over_budget([s.decision for _, s in turn], policy.turn_budget_tokens))
        if policy.sweep is not None:
            waiting = [(i, s) for i, s in history.open_slots if _may_be_swept(s)]
            old = sorted([*history.small_slots, *waiting], key=lambda place: place[1].number)
            now = [replace(s.decision, item=history.facts(i, s)) for i, s in old]
            leaving = [s for _, s in history.open_slots if _leaves(s)]
            tokens = history.tokens - history.tokens_freed - sum(max(0, saving(s.decision)) for s in leaving)
            self._open(old, swept(now, tokens, policy.sweep, policy.min_saving))

    def _open(self, places: Sequence[tuple[int, Slot]], leaving: Mapping[int, Decision]) -> None:
        """Take decisions over that items leave after all; `leaving` is by their place in `places`."""
        history = self._history
        for place, decision in leaving.items():
            history.decide(places[place][1], decision)
        opened = {id(places[place][1]) for place in leaving}
        history.open_slots += [p for p in history.small_slots if id(p[1]) in opened]
        history.small_slots = [p for p in history.small_slots if id(p[1]) not in opened]

    def _replace(self, errors: list[OffloadError]) -> None:
        """Store what is to be offloaded, then give its messages their outputs."""
        history = self._history
        self._ask_the_caller(errors)
        due = [(i, slot) for i, slot in history.open_slots if slot.decision.action == "offload"]
        wanted = [_wanted(slot.item, slot.decision, history.asked(i)) for i, slot in due]
        try:
            for (_, slot), outcome in zip(due, self._writer.write(wanted), strict=True):
                self._apply(slot, outcome, errors)
        finally:
            for index in dict.fromkeys(i for i, slot in due if slot.is_replaced):
                self._render_output(index, errors)
            history.open_slots = [(i, slot) for i, slot in history.open_slots if not slot.is_settled]

    def _ask_the_caller(self, errors: list[OffloadError]) -> None:
        """Keep what the caller wants kept; what it once let go or kept it is not asked about again."""
        history, kept = self._history, set()
        for _, slot in history.open_slots:
            if not _leaves(slot) or slot.decision.item.was_stored or slot.is_asked:
                continue
            try:
                slot.is_asked = True
                if self._hooks.lets_go(slot.decision.item):
                    continue
            except Exception as error:  # noqa: BLE001 # a hook of the caller's own may raise anything
                self._report(failure("should_offload:", error), errors)
            kept.add(slot.number)
            history.decide(slot, replace(slot.decision, action="keep", reason="the caller keeps it"))
        history.open_slots = [(i, slot) for i, slot in history.open_slots if slot.number not in kept]

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
        is_cut = self._on_error == "truncate" and item.media is None
        return _truncated(item.text, decision.preview_chars) if is_cut else item.text

    def _report(self, error: OffloadError, errors: list[OffloadError]) -> None:
        """Make one event of a failure: of a store that fails for many items, the first alone."""
        if isinstance(error, StoreError) and any(isinstance(e, StoreError) for e in errors):
            return
        errors.append(error)
        self._observer.failed(error)
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

    def _result(
        self, messages: Sequence[Any], errors: list[OffloadError], cache: CacheReport | None
    ) -> OffloadResult:
        history = self._history
        replaced = history.replaced_slots()
        return OffloadResult(
            messages=history.output(messages),
            records=[slot.info for slot in replaced if slot.info is not None],
            decisions=list(history.decisions),
            tokens_before=history.tokens,
            tokens_after=history.tokens - history.tokens_freed,
            chars_freed=sum(slot.chars_freed for slot in replaced),
            errors=errors,
            cache=cache,
        )


def _may_be_swept(slot: Slot) -> bool:
    return slot.decision.action == "wait" and slot.item.media is None


def _leaves(slot: Slot) -> bool:
    return slot.decision.action == "offload" and not slot.is_replaced


def _wanted(item: Item, decision: Decision, asked: str = "") -> Wanted:
    return Wanted(item, decision.item.tokens, decision.preview_chars, decision.ttl, asked)


def _said(history: History, role: str, scan: Scan) -> Mapping[str, str]:
    texts = [*scan.texts, *(item.text for item in scan.items if item.item_type != "tool_result")]
    said = "\n".join(text[:_SAID_CHARS] for text in texts)[:_SAID_CHARS]
    return {**history.said, role: said} if said else history.said


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
    malformed = MessageError(f"messages[{index}]: {type(error).__name__}: {error}")
    malformed.__cause__ = error
    return malformed


def _unexpected(error: Exception) -> OffloadError:
    return error if isinstance(error, OffloadError) else failure("unexpected", error)
