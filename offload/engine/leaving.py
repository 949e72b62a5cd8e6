"""Offloads what is decided to leave: asks the host, removes thinking, stores, and sets placeholders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from offload.engine.deciding import Decider
from offload.engine.failures import malformed
from offload.engine.finding import Finder
from offload.engine.guard import NOT_OFFLOADED, NOT_STORED, Guard
from offload.engine.history import History
from offload.engine.items import Slot, State
from offload.engine.judge import LOOK_ALIKE, Judge
from offload.engine.thinking import RemovedThinking
from offload.engine.writer import ItemWriter, Skipped, WriteOutcome, WriteRequest
from offload.errors import OffloadError, StoreError, unexpected
from offload.messages.base import Item
from offload.messages.media import media_ref
from offload.policy import Decision
from offload.preview.preview import head_tail
from offload.record import RecordInfo
from offload.settings.options import Options

VETO = "kept by should_offload"


@dataclass(slots=True, eq=False)
class Left:
    """The items that were to leave their messages in a turn, and the thinking that was removed.

    Attributes:
        before: how many messages the last turn had.
        late: the items in these that were to leave; some may have been kept after all.
        placed: the items that have a record now.
        blocks: how many blocks of thinking were removed.
    """

    before: int = 0
    late: list[Slot] = field(default_factory=list)
    placed: list[Slot] = field(default_factory=list)
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Leaver:
    """Offloads the items of a history that are decided to leave."""

    _history: History
    _guard: Guard
    _judge: Judge
    _decider: Decider
    _finder: Finder
    _writer: ItemWriter
    _options: Options
    _thinking: RemovedThinking

    def leave(self, left: Left) -> None:
        """Offload all items that are decided to leave, and add them to `left`."""
        left.late += [slot for slot in self._history.items.leaving() if slot.at < left.before]
        self.ask_hook()
        try:
            left.blocks += self._remove_thinking()
        except Exception as error:  # noqa: BLE001 # what was sent is kept as it was
            self._guard.failures.report(unexpected(error))
            for slot in self._sent_leaving():
                self._history.items.keep(slot, f"{NOT_OFFLOADED}{unexpected(error)}", State.FAILED)
        left.placed += self.store()

    def leave_cited(self, left: Left) -> None:
        """Offload the items that a new process would, since an equal item was stored in this turn."""
        items = self._history.items
        twins = [twin for slot in left.placed for twin in items.twins(slot)]
        twins = [t for t in twins if not (t.is_final or self._decider.is_sent(t))]
        # A record of another category is not its own.
        self._finder.note_stored(twins)
        cited = [slot for slot in twins if slot.stored is not None]
        if cited:
            self._decider.decide(cited)
            self.ask_hook()
            self.store()
        left.late += [slot for slot in cited if slot.at < left.before]

    def can_leave(self, slot: Slot) -> bool:
        """Return whether an item that the cost is to offload can leave: the plan counts on that.

        One that cannot for an error is tried again, and counts as gone.
        """
        items = self._history.items
        if slot.is_replaced:
            return True
        if slot.item.tool_use_id in self._judge.pinned:
            return False
        if not (slot.is_approved or slot.is_final or slot.has_failed):
            items.reopen(slot)
            items.note(slot, replace(slot.decision, item=self._history.facts(slot)))
            self._guard.each([slot], self._ask_about)
        return slot.state is not State.SETTLED

    # The host and the thinking

    def ask_hook(self) -> None:
        """Keep the items that `should_offload` rejects; it is asked once per item."""
        leaving = self._history.items.leaving()
        self._guard.each([s for s in leaving if not (s.is_foreign or s.is_approved)], self._ask_about)

    def _ask_about(self, slot: Slot) -> None:
        slot.is_approved = self._options.approves(slot.decision.item)
        if not slot.is_approved:
            self._history.items.keep(slot, VETO, State.SETTLED)

    def _sent_leaving(self) -> list[Slot]:
        """Return the items that were sent and leave now, so that the thinking behind them must leave too."""
        history = self._history
        # An item with a record was replaced before it was first sent, or the thinking behind it removed then.
        return [s for s in history.items.leaving() if s.at < history.fresh and s.stored is None]

    def _remove_thinking(self) -> int:
        """Store and remove the thinking behind the first message that changes; return how many blocks.

        Raises any exception; then no message may change that was sent.
        """
        history, bound = self._history, self._history.thinking
        if not self._decider.binds:
            return 0
        late = [slot for slot in self._sent_leaving() if not self._is_skipped(slot)]
        # Thinking that could not be stored in an earlier turn is tried again.
        edits = [at for at in (bound.edited_before(), bound.unremoved) if at is not None]
        bound.unremoved = min(edits, default=None)
        changes = [slot.at + 1 for slot in late] + edits
        indices = bound.sent_from(min(changes)) if changes else []
        if not indices:
            bound.unremoved = None
            return 0
        cause = f"messages[{min(changes) - (not edits)}] changed"
        blocks = self._thinking.remove(history.messages.passed, indices, cause)
        bound.unremoved = None
        return blocks

    def _is_skipped(self, slot: Slot) -> bool:
        """Return whether an item that is due would be kept: then no thinking behind it is removed."""
        skipped = self._writer.skipped(self._request(slot))
        if skipped is not None:
            self._apply(slot, skipped)
        return skipped is not None

    # Records and placeholders

    def store(self) -> list[Slot]:
        """Store the items that are due, and replace them; return those that have a record now."""
        due = self._history.items.due()
        requests: dict[Slot, WriteRequest] = {}
        outcomes: dict[Slot, WriteOutcome] = {}
        self._guard.each(due, lambda slot: requests.update({slot: self._request(slot)}))
        try:
            outcomes.update(zip(requests, self._writer.write([*requests.values()]), strict=True))
        finally:
            self._guard.each(outcomes, lambda slot: self._apply(slot, outcomes[slot]))
            for index in dict.fromkeys(slot.at for slot in due if slot.is_replaced):
                self._guard.part(self.render, None, index)
        return [slot for slot in due if slot.info is not None]

    def store_again(self, slots: dict[Slot, RecordInfo]) -> None:
        """Store items again whose records were deleted since; see `Turn.store_again`."""
        requests = [
            WriteRequest(slot.item, slot.decision, is_forced=True, ref=info.ref, placeholder=slot.text)
            for slot, info in slots.items()
        ]
        for (slot, info), outcome in zip(slots.items(), self._writer.write(requests), strict=True):
            if isinstance(outcome, OffloadError):
                raise outcome
            if isinstance(outcome, Skipped) or outcome.placeholder != slot.text:
                raise StoreError(f"record {info.ref} was deleted and cannot be stored again as it was")
            self._history.items.renew(slot, outcome.info)

    def render(self, index: int) -> None:
        """Set what the caller receives in place of a message; an item that cannot be replaced is kept."""
        history, state = self._history, self._history.states[index]
        output = history.messages.passed[index]
        for slot in state.slots:
            if slot.is_replaced:
                try:
                    output = slot.item.replace_in(output, slot.text)
                except Exception as error:  # noqa: BLE001 # a message object may raise anything
                    history.items.undo(slot)
                    self._guard.fail(slot, malformed(error, f"messages[{index}]"))
        try:
            output = output if state.left_out is None else self._thinking.left_out(output)
            history.messages.send(index, output)
        except Exception as error:  # noqa: BLE001 # a message object may raise anything
            self._guard.failures.report(malformed(error, f"messages[{index}]"))
            self._guard.failures.is_incomplete = True
            history.leave_out(index, None)

    def _request(self, slot: Slot) -> WriteRequest:
        """Return the request for an item; a look-alike that must be kept is stored as proof of what it is."""
        must_keep = (
            slot.decision.action == "keep"
            or isinstance(slot.item.block, tuple)
            or media_ref(slot.item.text) is not None
        )
        return WriteRequest(
            slot.item,
            slot.decision,
            self._history.query(slot.at),
            is_forced=slot.is_foreign,
            keeps_text=slot.is_foreign and must_keep,
            ref=slot.stored,
        )

    def _apply(self, slot: Slot, outcome: WriteOutcome) -> None:
        items, decision = self._history.items, slot.decision
        if isinstance(outcome, Skipped):
            items.keep(slot, outcome.reason, State.SETTLED)
        elif isinstance(outcome, OffloadError):
            self._guard.report(slot, outcome)
            text = fallback_text(slot.item, decision, self._options)
            self._put(slot, text, None, replace(decision, action="keep", reason=f"{NOT_STORED}{outcome}"))
        elif outcome.placeholder == slot.item.text:
            items.keep(slot, LOOK_ALIKE, State.SETTLED)
        else:
            decision = replace(decision, action="offload", ref=outcome.info.ref)
            self._put(slot, outcome.placeholder, outcome.info, decision)

    def _put(self, slot: Slot, text: str, info: RecordInfo | None, decision: Decision) -> None:
        tokens, _ = self._judge.count(text)
        self._history.items.put(slot, text, info, replace(decision, tokens_after=tokens))


def fallback_text(item: Item, decision: Decision, options: Options) -> str:
    """Return the text of an item that could not be stored; with `on_error="truncate"` it is cut."""
    if options.on_error != "truncate" or item.media is not None:
        return item.text
    preview = head_tail(item.text, decision.preview_chars).text
    cut = f"{preview}\n[Truncated: {len(item.text)} characters in all; the rest was not stored and is lost.]"
    return cut if len(cut) < len(item.text) else item.text
