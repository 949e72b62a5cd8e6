"""One turn of a conversation: read the new messages, decide, store, replace, report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.engine.bound import mode_of
from offload.engine.deciding import Decider
from offload.engine.failures import AboveCeilingError, Failures
from offload.engine.finding import Finder
from offload.engine.guard import Guard
from offload.engine.history import History, MessageState
from offload.engine.items import Slot
from offload.engine.judge import Judge
from offload.engine.leaving import Leaver, Left
from offload.engine.moment import CacheWatch, HostCache, Moment
from offload.engine.reading import Reader
from offload.engine.recognition import Recognition
from offload.engine.results import CacheReport, HistoryMode, OffloadResult
from offload.engine.thinking import RemovedThinking
from offload.engine.writer import ItemWriter
from offload.errors import unexpected
from offload.messages.base import Item
from offload.policy.facts import Readers
from offload.policy.groups import excess
from offload.settings.options import Options


class Turn:
    """The work of one call of `offload`; the history holds what the next turn needs."""

    def __init__(
        self,
        *,
        history: History,
        judge: Judge,
        recognition: Recognition,
        writer: ItemWriter,
        options: Options,
        failures: Failures,
        watch: CacheWatch,
        thinking: RemovedThinking,
        readers: Readers = "keep",
        cache: HostCache | None = None,
        model: str | None = None,
    ) -> None:
        self._history = history
        self._judge = judge
        self._recognition = recognition
        self._failures = failures
        self._watch = watch
        self._cache = cache
        self._model = model
        self._guard = guard = Guard(history, failures)
        self._decider = decider = Decider(judge, history, guard, readers, model)
        self._reader = Reader(history, guard, judge, decider, recognition, thinking)
        self._finder = finder = Finder(history, guard, decider, recognition, thinking)
        self._leaver = Leaver(history, guard, judge, decider, finder, writer, options, thinking)

    def run(self, messages: Sequence[Any]) -> OffloadResult:
        """Return the messages with their large items replaced.

        A part that fails costs what it was to do in this turn. Raises any exception of the parts that the
        others build on; then the history is incomplete.
        """
        history, part, left = self._history, self._guard.part, Left(len(self._history))
        if history.plan is not None:
            history.plan.may_leave = self._leaver.can_leave
        known = self._reader.keep_common(messages)
        if not self._keep_placeholders():
            known = history.keep_common(())
        part(self._reader.retry, None)
        unread = self._reader.add(messages)
        moment = part(self._watch.begin, Moment(), history.answers, self._cache, self._failures)
        thinking = history.thinking.at
        mode = part(mode_of, HistoryMode(), self._decider.policy.history, self._model, thinking)
        part(self._open_paying, None, moment)
        first = 0 if history.note_bound(is_bound=self._decider.is_bound) else known
        part(self._finder.find_stored, None, known, first)
        part(self._finder.prove_claims, None)
        part(self._decider.decide, None, history.items.opened())
        part(self._decider.decide_together, None, known)
        part(self._leave, None, known, left)
        for index in (*part(self._reader.leave_out, [], known), *history.edited_outputs()):
            part(self._leaver.render, None, index)
        part(self._report_excess, None, known)
        part(history.end_turn, None)
        cache = part(self._cache_report, None, moment, left)
        result = self._result(cache, mode._replace(thinking_removed=left.blocks))
        for index in unread:
            result.messages[index] = messages[index]
        return result

    def run_one(self, item: Item) -> Slot:
        """Offload a single text, which is a message of its own, if the rule for it says so."""
        slot = self._reader.slot(0, item)
        self._history.add(item.text, MessageState([slot], 0, {}, 0, "", {}))
        self._finder.prove_claims()
        self._decider.decide([slot])
        self._leaver.ask_hook()
        self._leaver.store()
        return slot

    def store_again(self) -> int:
        """Store the items whose records were deleted since they were replaced; return how many they were.

        Their placeholders do not change. Raises `OffloadError` if one could not be kept.
        """
        placed = [(slot, slot.info) for slot in self._history.since(0)]
        held = {info.key: (slot, info) for slot, info in placed if info is not None}
        gone = self._recognition.gone([info for _, info in held.values()])
        lost = dict(held[key] for key in held if key in gone)
        self._leaver.store_again(lost)
        return len(lost)

    def _keep_placeholders(self) -> bool:
        """Store again what this process deleted beneath the messages of this turn; return whether all is."""
        try:
            if self._recognition.has_new_deletions():
                self.store_again()
        except Exception as error:  # noqa: BLE001 # the items are decided again, in their messages
            self._failures.report(unexpected(error))
            return False
        return True

    def _open_paying(self, moment: Moment) -> None:
        """Open the items whose offload is expected to lower the cost."""
        history = self._history
        if history.plan is None:
            return
        if moment.is_cold and not self._decider.is_bound:
            history.plan.cool()
        history.plan.retry_refused()
        for slot in history.plan.due:
            history.items.reopen(slot)
        history.plan.due.clear()

    def _leave(self, known: int, left: Left) -> None:
        """Offload all items that are to be, and add them to `left`."""
        self._leaver.leave(left)
        if self._decider.policy.sweep is not None:
            # The tokens of a placeholder are known once it is there, to a new process too.
            self._decider.sweep(self._decider.policy.sweep)
            self._leaver.leave(left)
        while self._decider.decide_together(known):
            # An item that was chosen is kept, so the next largest is chosen.
            self._leaver.leave(left)
        # An item can come twice in one turn.
        self._finder.note_if_stored(known)
        self._leaver.leave_cited(left)

    # Report

    def _report_excess(self, known: int) -> None:
        """Report what remains above the ceiling, except for items whose failure was reported."""
        ceiling = self._decider.policy.max_view_tokens
        if ceiling is None:
            return
        for turn in self._history.turns(known):
            view = [slot.decision for slot in turn if slot.is_in_view and not slot.has_failed]
            for text in excess(view, ceiling):
                self._failures.note(AboveCeilingError(text))
        for text in self._history.fixed_excess(known, ceiling):
            self._failures.note(AboveCeilingError(text))

    def _cache_report(self, moment: Moment, left: Left) -> CacheReport | None:
        """Return the effect of this turn on the provider's cache."""
        history, sent = self._history, self._history.sent()
        kept = min(sent, history.unchanged(left.late))
        freed, rewritten = history.rewritten(min(sent, left.before), left.late)
        if moment.is_cold:
            rewritten = 0 if moment.cause == "first" else history.tokens_before(sent)
        return self._watch.end(
            moment,
            tokens=history.tokens_before(len(history)),
            unchanged=history.tokens_before(kept),
            freed=freed,
            rewritten=rewritten,
        )

    def _result(self, cache: CacheReport | None, mode: HistoryMode) -> OffloadResult:
        history, items = self._history, self._history.items
        return OffloadResult(
            messages=history.messages.sent.copy(),
            records=items.infos(),
            decided=items.decided(),
            tokens_before=history.tokens,
            tokens_after=history.tokens - history.tokens_freed,
            chars_freed=items.chars_freed,
            errors=self._failures.errors,
            cache=cache,
            history=mode,
        )
