"""The conversation of one session: turns over the growing message list, and single texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from offload.codec import SpooledContent
from offload.engine.failures import Failures, unexpected
from offload.engine.following import Follower
from offload.engine.history import History
from offload.engine.judge import Judge
from offload.engine.moment import CacheWatch, HostCache
from offload.engine.recognition import Recognition
from offload.engine.results import Latest, OffloadOutcome, OffloadResult
from offload.engine.thinking import RemovedThinking
from offload.engine.turn import Turn, fallback_text
from offload.engine.writer import ItemWriter, Skipped, WriteOutcome, WriteRequest
from offload.errors import OffloadError
from offload.events import Observer, failure, observed
from offload.messages import Item
from offload.options import Options
from offload.policy import CostPlan, Readers
from offload.record import decode_text
from offload.session import OffloadedItem
from offload.store import OffloadStore, update_index


class Conversation:
    """The messages of one session as they grow, and the outcome of offloading them."""

    def __init__(
        self,
        store: OffloadStore,
        options: Options,
        writer: ItemWriter,
        recognition: Recognition,
        observer: Observer,
        *,
        follower: Follower,
        thinking: RemovedThinking,
    ) -> None:
        self._store = store
        self._options = options
        self._judge = Judge(options)
        self._writer = writer
        self._recognition = recognition
        self._observer = observer
        self._follower = follower
        self._thinking = thinking
        self.model: str | None = options.model
        self.latest: Latest = Latest()
        self.watch: CacheWatch = CacheWatch(options)
        self._history = self._new_history()

    @observed("offload", OffloadResult.figures)
    def offload(
        self,
        messages: Sequence[Any],
        pinned: Iterable[str] = (),
        cache: HostCache | None = None,
        model: str | None = None,
    ) -> OffloadResult:
        """Return the messages with their large items replaced; see `Offloader.offload`."""
        self.model = self._options.model if model is None else model
        with self._failures() as failures:
            self._judge.pinned = frozenset(pinned)
            try:
                if self._recognition.has_lost(self._history.infos):
                    self.start_over()
                return self._followed(self._turn(failures, self._history, cache=cache).run(messages))
            except Exception as error:  # noqa: BLE001 # a hook, renderer or message may raise anything
                self.start_over()
                self._fail(error, failures)
                return OffloadResult(list(messages), [], ([], 0), 0, 0, 0, failures.errors)
            except BaseException:
                self.start_over()
                raise

    def _followed(self, result: OffloadResult) -> OffloadResult:
        self._follower.follow(self._history)
        return result

    def start_over(self) -> None:
        """Drop the history, which is incomplete after an interrupted turn."""
        self._history = self._new_history()

    @observed("offload_text")
    def offload_item(self, item: Item, readers: Readers) -> OffloadOutcome:
        """Offload one item if the policy says so; `readers` as in `OffloadPolicy.decide`."""
        with self._failures() as failures:
            try:
                slot = self._turn(failures, History(), readers).run_one(item)
            except Exception as error:  # noqa: BLE001 # a hook, renderer or message may raise anything
                return OffloadOutcome(item.text, error=self._fail(error, failures))
            return OffloadOutcome(slot.text, slot.info, next(iter(failures.errors), None), slot.decision)

    @observed("offload_text")
    def offload_long(self, item: Item, content: SpooledContent) -> OffloadOutcome:
        """Offload an item with the text `content`, too long for a message; the policy is not asked."""
        counts = content.counts
        facts, _ = self._judge.facts(item)
        facts = facts._replace(chars=counts.chars, bytes=counts.bytes, tokens=counts.tokens)
        decision = self._judge.policy.decide(facts)
        outcome: WriteOutcome
        with self._failures() as failures:
            try:
                [outcome] = self._writer.write(
                    [WriteRequest(item, decision, is_forced=True, content=content)]
                )
            except Exception as error:  # noqa: BLE001 # a hook or renderer may raise anything
                outcome = unexpected(error)
            if isinstance(outcome, OffloadedItem):
                return OffloadOutcome(outcome.placeholder, outcome.info)
            problem = OffloadError(outcome.reason) if isinstance(outcome, Skipped) else outcome
            failures.report(problem)
        whole = replace(item, text=decode_text(content.data))
        return OffloadOutcome(fallback_text(whole, decision, self._options), error=problem)

    def count(self, text: str) -> int:
        """Return the tokens of a part of a text; if the counter fails, an estimate, and report it."""
        tokens, problem = self._judge.count(text)
        if problem is not None:
            self._new_failures().report(problem)
        return tokens

    def forget(self, message: Any) -> bool:
        """Scan `message` and all later ones again in the next turn; return whether it was known."""
        return self._history.forget(message)

    @property
    def may_bind(self) -> bool:
        """Whether signed thinking is bound, by the policy and the model of the last call."""
        return self._judge.policy.may_bind(self.model)

    def remove_thinking(self, messages: Sequence[Any], indices: Sequence[int], cause: str) -> int:
        """Remove the signed thinking of some messages; see `Offloader.remove_thinking`."""
        return self._thinking.remove(messages, indices, cause)

    def _new_history(self) -> History:
        return History(CostPlan(self._options.policy.cache))

    def _turn(
        self,
        failures: Failures,
        history: History,
        readers: Readers = "keep",
        cache: HostCache | None = None,
    ) -> Turn:
        return Turn(
            history,
            self._judge,
            self._recognition,
            self._writer,
            self._options,
            failures,
            self.watch,
            self._thinking,
            readers,
            cache,
            self.model,
        )

    def _fail(self, error: Exception, failures: Failures) -> OffloadError:
        """Report an error that ended a call, or raise it with `on_error="raise"`."""
        wrapped = unexpected(error)
        if self._options.on_error == "raise":
            raise wrapped from wrapped.__cause__
        failures.report(wrapped)
        return wrapped

    @contextmanager
    def _failures(self) -> Iterator[Failures]:
        """Yield the failures of one call; at its end the store updates its index files, if it keeps any."""
        failures = self._new_failures()
        try:
            yield failures
        finally:
            try:
                update_index(self._store)
            except Exception as error:  # noqa: BLE001 # a store may raise anything; the items are stored
                problem = error if isinstance(error, OffloadError) else failure("update_index:", error)
                failures.note_index(problem)

    def _new_failures(self) -> Failures:
        return Failures(self._observer, raises=self._options.on_error == "raise")
