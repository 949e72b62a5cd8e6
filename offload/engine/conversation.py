"""The conversation of one session: turns over the growing message list, and single texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from offload.base.events import EventType
from offload.base.text import decode_text
from offload.engine.cache_state import CacheWatch
from offload.engine.failures import Failures, name_of
from offload.engine.following import Follower
from offload.engine.items import Slot, unweighed
from offload.engine.leaving import fallback_text
from offload.engine.log import Log
from offload.engine.look_alikes import LookAlikes
from offload.engine.parts import MessageState
from offload.engine.placeholder import DefaultRenderer, Notice, PlaceholderRenderer
from offload.engine.placeholder.notice import NOTICE_TOOL, NOTICE_TYPE
from offload.engine.policy.cost import CostPlan
from offload.engine.policy.facts import Readers
from offload.engine.reading import facts_of
from offload.engine.recognition import Recognition
from offload.engine.removed import RemovedThinking
from offload.engine.restorer import undone
from offload.engine.results import Latest, OffloadOutcome, OffloadResult
from offload.engine.settings.options import Options
from offload.engine.sources import Sources
from offload.engine.steps import run, run_one, store_again
from offload.engine.turn import Terms, Turn
from offload.engine.writer import ItemWriter, Skipped, TableLine, WriteRequest
from offload.errors import OffloadError, result_or_error, unexpected
from offload.messages.base import Item
from offload.messages.stored import map_texts, to_json
from offload.records.codec.spooled import SpooledContent
from offload.records.observer import Observer, observed
from offload.records.session import Session
from offload.records.session.drafts import OffloadedItem
from offload.storage.store import update_index


class Conversation:
    """The messages of one session as they grow, and the outcome of offloading them.

    Attributes:
        on_recalled: see `Offloader.on_recalled`.
    """

    def __init__(
        self,
        session: Session,
        options: Options,
        observer: Observer,
        sources: Sources,
        table_line: TableLine,
    ) -> None:
        self._session = session
        self._options = options
        self._observer = observer
        self._code_calls: set[str] = set()
        self._follower = Follower(sources)
        recognition = Recognition(session, options)
        self._table_line = table_line
        self.recognition: Recognition = recognition
        self._writer = self._writer_of(options)
        self.look_alikes: LookAlikes = LookAlikes(recognition, self._writer)
        self.thinking: RemovedThinking = RemovedThinking(
            session,
            self._writer_as_is(DefaultRenderer()),
            options.redacted,
            observer,
            partial(undone, recognition),
        )
        self.model: str | None = options.model
        self._on_recalled: Callable[[OffloadResult], object] | None = None
        self.latest: Latest = Latest()
        self.watch: CacheWatch = CacheWatch(options)
        # The prompt cache of the requests, and the model and the lifetime that it is of.
        self._cache, self._cached = options.policy.cache, (options.model, self.watch.kept_for)
        self._log = self._new_log()

    @property
    def on_recalled(self) -> Callable[[OffloadResult], object] | None:
        """See `Offloader.on_recalled`."""
        return self._on_recalled

    @on_recalled.setter
    def on_recalled(self, on_recalled: Callable[[OffloadResult], object] | None) -> None:
        self._on_recalled = on_recalled
        self._session.checks_adopted = on_recalled is None

    @observed("offload", OffloadResult.figures)
    def offload(self, messages: Sequence[Any], terms: Terms) -> OffloadResult:
        """Return the messages with their large items replaced; see `Offloader.offload`."""
        self.model = self._options.model if terms.model is None else terms.model
        self._price()
        with self._failures() as failures:
            try:
                result = self._offloaded(messages, terms, failures)
            except BaseException:
                self.start_over()
                raise
            if failures.is_incomplete:
                self.start_over()
        return result

    def _offloaded(self, messages: Sequence[Any], terms: Terms, failures: Failures) -> OffloadResult:
        """Return the result of a turn; if that fails as a whole, of one without the log."""
        for _ in range(2):
            try:
                turn = self._turn(failures, self._log, terms)
                turn.on_recalled = self._on_recalled
                result = run(turn, messages, self.watch, terms.cache)
            except Exception as error:  # noqa: BLE001 # a message or a store may raise anything
                self.start_over()
                failures.report(unexpected(error))
            else:
                self._follow(turn, result)
                return result
        return OffloadResult(list(messages), [], ([], 0), 0, 0, 0, failures.errors)

    def _price(self) -> None:
        """Let the turn decide by the prompt cache of its model, with the lifetime that requests ask for."""
        asked = self.model, self.watch.kept_for
        if asked != self._cached:
            self._cache, self._cached = self._options.policy.cache_for(*asked), asked
            self.watch.price(self._cache)
            self._log.price(self._cache)

    def _follow(self, turn: Turn, result: OffloadResult) -> None:
        """Note what the tools and `explain` show of a turn."""
        try:
            if not turn.is_aside:
                self.latest.note(result)
            self._follower.follow(self._log)
        except Exception as error:  # noqa: BLE001 # a message may raise anything; the tools then know less
            turn.failures.report(unexpected(error))
            turn.failures.is_incomplete = True

    def store_again(self) -> int:
        """Store the items whose records were deleted since; see `Offloader.store_again`."""
        with self._failures() as failures:
            try:
                return store_again(self._turn(failures, self._log))
            except BaseException:
                # The next turn decides again, with the items in their messages.
                self.start_over()
                raise

    def start_over(self) -> None:
        """Drop the log, which is incomplete after an interrupted turn."""
        self._log = self._new_log(self._log.told)
        self._session.facts.is_listed = False

    @observed("offload_text")
    def offload_item(self, item: Item, file_readers: Readers, agent: str | None) -> OffloadOutcome:
        """Offload one item if the policy says so; `file_readers` as in `OffloadPolicy.decide`."""
        slot: Slot | None = None
        with self._failures() as failures:
            try:
                terms = Terms(agent=agent, file_readers=file_readers)
                slot = run_one(self._turn(failures, Log(), terms), item)
            except Exception as error:  # noqa: BLE001 # a hook or renderer may raise anything
                failures.report(unexpected(error), name_of(item, None))
        if slot is None:
            return OffloadOutcome(item.text, error=failures.first)
        return OffloadOutcome(slot.text, slot.info, failures.first, slot.decision)

    @observed("offload_text")
    def offload_long(self, item: Item, content: SpooledContent, agent: str | None) -> OffloadOutcome:
        """Offload an item with the text `content`, too long for a message; the policy is not asked."""
        outcome: OffloadedItem | Skipped | OffloadError
        with self._failures() as failures:
            try:
                counts = content.counts
                facts, _ = facts_of(self._turn(failures, Log()), item)
                decision = self._options.policy.decide(
                    facts._replace(chars=counts.chars, bytes=counts.bytes, tokens=counts.tokens)
                )
                least = self._options.policy.min_saving
                request = WriteRequest(
                    item, decision, min_saving=least, is_forced=True, content=content, agent=agent
                )
                [outcome] = self._writer.write([request])
            except Exception as error:  # noqa: BLE001 # a hook or renderer may raise anything
                outcome, decision = unexpected(error), unweighed(item, 0)
            if isinstance(outcome, OffloadedItem):
                return OffloadOutcome(outcome.placeholder, outcome.info)
            problem = OffloadError(str(outcome.reason)) if isinstance(outcome, Skipped) else outcome
            failures.report(problem, name_of(item, None))
        whole = replace(item, text=decode_text(content.data))
        return OffloadOutcome(fallback_text(whole, decision, self._options), error=failures.first)

    @observed("offload", OffloadResult.figures)
    def offload_aside(self, messages: Sequence[Any], indices: Iterable[int]) -> OffloadResult:
        """Return messages that are not sent, with the items of some replaced that are due at any time.

        The messages that are sent, and what is known of them, do not change.
        """
        terms = Terms(policy=self._options.policy.at_once(), only=frozenset(indices))
        with self._failures(may_raise=False) as failures:
            turn = self._turn(failures, self._new_log(), terms)
            return run(turn, messages, CacheWatch(self._options), None)

    @observed("offload_text")
    def store_notice(self, text: str, notice: Notice, title: str) -> OffloadedItem | None:
        """Store the text of removed messages as it is; return None if the notice would be no shorter.

        Raises `OffloadError` if it cannot be stored.
        """
        item = Item(None, NOTICE_TYPE, text, NOTICE_TOOL, title=title)
        decision = unweighed(item, 0)
        facts = decision.item._replace(tokens=self.count(text))
        request = WriteRequest(item, replace(decision, item=facts, action="offload"))
        with self._failures(may_raise=False):
            [outcome] = self._writer_as_is(notice).write([request])
        if isinstance(outcome, OffloadError):
            raise outcome
        return outcome if isinstance(outcome, OffloadedItem) else None

    def count(self, text: str) -> int:
        """Return the tokens of a part of a text; if the counter fails, an estimate, and report it."""
        tokens, problem = self._options.count_or_estimate(text)
        if problem is not None:
            failures = self._new_failures()
            failures.report(problem)
            failures.end()
        return tokens

    def note_text(self, text: str, outcome: OffloadOutcome) -> None:
        """Note the decision on a text, for `explain`, and emit the reason if the text is kept."""
        decision = outcome.decision
        try:
            self.latest.note_text(text, decision)
            if decision is not None and outcome.info is None and outcome.error is None:
                reason = decision.reason
                self._observer.kept(decision.item._asdict(), reason.kind, str(reason))
        except Exception as error:  # noqa: BLE001 # the text has its placeholder
            self._observer.failed(unexpected(error))

    def marks(self, result: OffloadResult) -> tuple[int, Callable[[int], Sequence[Any]]]:
        """Return how many messages of the last result are those of the one before, and a function of marks.

        See `WatchedMessages.marks`; it returns the messages themselves if the log does not have them.
        """
        messages, sent = self._log.messages, result.messages
        if len(messages.sent) != len(sent):
            return 0, lambda start: sent[start:]
        return messages.first_output, messages.marks

    def recheck(self, message: Any) -> bool:
        """Scan `message` and all later ones again in the next turn; return whether it was known."""
        return self._log.forget(message)

    def originals(self, messages: Iterable[Any]) -> list[Any]:
        """Return messages as they were passed; see `Offloader.originals`."""
        return self._log.originals(messages)

    def resume(self, sent: Sequence[Any]) -> None:
        """Note the messages that another process sent last, as its journal keeps them."""
        if not len(self._log):
            self._log.thinking.resume(sent, self._as_kept)

    def _as_kept(self, message: Any) -> Any:
        if self._options.redact is None:
            return message
        return result_or_error(lambda: map_texts(to_json(message, is_exact=True), self._options.redacted))

    def _new_log(self, gone: Iterable[MessageState] = ()) -> Log:
        return Log(CostPlan(self._cache), gone)

    def _writer_of(self, options: Options) -> ItemWriter:
        return ItemWriter(self._session, options, self.recognition, self._observer, self._table_line)

    def _writer_as_is(self, renderer: PlaceholderRenderer) -> ItemWriter:
        """Return a writer of texts of the library, which are redacted part by part."""
        return self._writer_of(
            replace(self._options, redact=None, should_offload=None, summarizer=None, placeholder=renderer)
        )

    def _turn(self, failures: Failures, log: Log, terms: Terms = Terms()) -> Turn:  # noqa: B008 # a value
        return Turn(
            log=log,
            recognition=self.recognition,
            writer=self._writer,
            thinking=self.thinking,
            options=self._options,
            failures=failures,
            terms=terms,
            model=self.model,
            code_calls=self._code_calls,
            policy=self._options.policy if terms.policy is None else terms.policy,
        )

    @contextmanager
    def _failures(self, *, may_raise: bool = True) -> Iterator[Failures]:
        """Yield the failures of one call; at its end the store updates its index files, if it keeps any.

        Raises what was reported if it may, and the caller asked for that.
        """
        failures = self._new_failures(may_raise=may_raise)
        try:
            yield failures
        finally:
            problem = result_or_error(update_index, self._session.store)
            if problem is not None:
                failures.note(problem, EventType.INDEX_FAILED)
            unused = result_or_error(self._session.take_problem)
            if unused is not None:
                self._observer.failed(unused, EventType.INDEX_FAILED)
        failures.end()

    def _new_failures(self, *, may_raise: bool = True) -> Failures:
        return Failures(self._observer, raises=may_raise and self._options.on_error == "raise")
