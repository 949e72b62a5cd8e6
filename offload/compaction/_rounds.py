"""Compaction by rounds: the oldest leave as one summary, the latest stay whole."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from offload.compaction._archive import Archive, Notice, as_user_message
from offload.compaction._config import Refusal, RoundConfig
from offload.compaction._summary import Summarizer, ask, rounds_request
from offload.context import ContextEvent, EventBus, EventType, MessageCounter, split_rounds
from offload.errors import ConfigError, ContextFullError, OffloadError
from offload.events import said
from offload.messages import role_or_none
from offload.offloader import Offloader
from offload.threads import call_hook, in_thread
from offload.tokens import TokenCounter

_SYSTEM_ROLES = ("system", "developer")
_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A compaction that somebody is asked about; as a text it is the question.

    Attributes:
        tokens: what the context takes now.
        max_tokens: what it may take.
        rounds: how many rounds would leave at least.
    """

    tokens: int
    max_tokens: int
    rounds: int

    def __str__(self) -> str:
        return (
            f"The context takes {self.tokens} of {self.max_tokens} tokens. Replace the {self.rounds} oldest "
            f"rounds by a summary? They stay stored, and can be read back."
        )


Confirm = Callable[[Proposal], bool | Refusal | Awaitable[bool | Refusal]]


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did.

    Attributes:
        new_messages: the messages to go on with; the same objects but for one that stands for all that left.
        summary: what is said of them there; empty where nobody was asked for one.
        original_token_count: tokens before, system prompt and tool definitions included.
        new_token_count: tokens after, counted the same way.
        compacted_count: how many rounds left.
        error: why nothing was done, where something failed; the messages are then as they came.
    """

    new_messages: list[Any]
    summary: str
    original_token_count: int
    new_token_count: int
    compacted_count: int
    error: OffloadError | None = None

    @property
    def saved_ratio(self) -> float:
        """The part of the tokens that was saved, from 0 to 1."""
        return 1 - self.new_token_count / self.original_token_count if self.original_token_count else 0.0


@dataclass(frozen=True, slots=True)
class _View:
    """A conversation as a compaction sees it: `head` stays whatever happens, `fixed` is sent beside it."""

    messages: list[Any]
    tokens: list[int]
    head: list[int]
    rounds: list[list[int]]
    fixed: int

    @property
    def total(self) -> int:
        return self.fixed + sum(self.tokens)

    def leaving(self, keep: int) -> list[int]:
        return [i for one in self.rounds[: len(self.rounds) - keep] for i in one]

    def staying(self, keep: int) -> list[int]:
        return [i for one in self.rounds[len(self.rounds) - keep :] for i in one]

    def tokens_kept(self, keep: int) -> int:
        return self.fixed + sum(self.tokens[i] for i in (*self.head, *self.staying(keep)))


@dataclass(frozen=True, slots=True)
class _Plan:
    keep: int
    notice: Notice
    tokens: int


class RoundCompactor:
    """Replaces the oldest rounds of a conversation by a summary once it nears the context window.

    A round is what the user said and all that follows until the user speaks again, so a tool call and its
    result leave or stay together. System messages always stay. What leaves is stored in the session of
    the offloader before it does, and the message that stands for it says how to read it back. A lone
    round, as one request and a long loop of tools, is never cut: `SelectiveCompaction` cuts inside it.

    Args:
        offloader: where the rounds go that leave.
        summarizer: asks a model for the summary.
        config: the settings; the default is `RoundConfig()`.
        confirm: asked before each compaction where the settings require it. True goes on, False does what
            `on_refusal` says, and the name of a refusal does that.
        events: told `context_compacted` after each compaction, with the data `original_tokens`,
            `new_tokens`, `saved_ratio`, `summary` and `compacted_count`.
        token_counter: counts tokens of a text; the default is the offline estimate.

    Raises:
        ConfigError: the settings require a confirmation, and there is nobody to ask.
    """

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer,
        config: RoundConfig | None = None,
        *,
        confirm: Confirm | None = None,
        events: EventBus | None = None,
        token_counter: TokenCounter | None = None,
    ) -> None:
        self.config = RoundConfig() if config is None else config
        if self.config.require_confirmation and confirm is None:
            raise ConfigError("require_confirmation needs `confirm=`, a function that asks the user")
        self.events = EventBus() if events is None else events
        self._archive = Archive(offloader)
        self._summarizer = summarizer
        self._confirm = confirm
        self._counter = MessageCounter(token_counter)

    def should_compact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> bool:
        """Tell whether a compaction is due: the context takes the trigger's part of the window or more.

        Of a list that grew since the last call only what is new is counted.

        Args:
            messages: the conversation.
            system_prompt: what is sent as system prompt beside it.
            tools: the tool definitions that are sent along.
        """
        if not self.config.enabled:
            return False
        fixed = self._fixed(system_prompt, tools)
        return fixed + self._counter.total(messages) >= self.config.trigger_tokens

    def compact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> CompactResult:
        """Compact a conversation, due or not.

        Where the recent rounds leave it over the trigger, fewer of them stay, at least the last one. If
        the summarizer or the store fails nothing is changed, and the result has the error.

        Args:
            messages: the conversation, in any format that `Offloader.offload` takes. Never changed.
            system_prompt: what is sent as system prompt beside it; it stays as it is, and is counted.
            tools: the tool definitions that are sent along; the same.

        Raises:
            ContextFullError: what must stay is over the window by itself, or the compaction was refused
                and the refusal is "error".
            ConfigError: `confirm` returned what is no answer.
        """
        view = self._view(messages, system_prompt, tools)
        refusal = self._refusal(view) if self._may_leave(view) else None
        if refusal == "error":
            raise ContextFullError(
                f"the compaction of a context of {view.total} tokens was refused: shorten it by hand, "
                "or begin a new session"
            )
        try:
            plan = self._plan(view, refusal)
            if plan is None:
                return _unchanged(view)
            return self._carried_out(view, plan)
        except (ConfigError, ContextFullError):
            raise
        except OffloadError as error:
            _log.warning("nothing was compacted: %s", said(error))
            return _unchanged(view, error)

    async def acompact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> CompactResult:
        """Do what `compact` does, in a thread; async hooks run on this loop."""
        return await in_thread(self.compact, messages, system_prompt, tools)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all that ever left them by a compaction, as it was.

        Objects of an SDK come back as the data that they are made of.

        Raises:
            OffloadError: a record is damaged, was collected, or cannot be read.
        """
        return self._archive.restore(messages)

    def _view(self, messages: Sequence[Any], system_prompt: str, tools: Sequence[Any]) -> _View:
        given = list(messages)
        head = [i for i, message in enumerate(given) if role_or_none(message) in _SYSTEM_ROLES]
        others = [i for i in range(len(given)) if i not in set(head)]
        rounds = [[others[i] for i in one] for one in split_rounds([given[i] for i in others])]
        fixed = self._fixed(system_prompt, tools)
        return _View(given, self._counter.messages(given), head, rounds, fixed)

    def _fixed(self, system_prompt: str, tools: Sequence[Any]) -> int:
        return self._counter.text(system_prompt) + self._counter.data(list(tools))

    def _refusal(self, view: _View) -> Refusal | None:
        """Ask whether to compact; return what is done instead, None if nothing is."""
        if self._confirm is None or not self.config.require_confirmation:
            return None
        least = max(1, len(view.rounds) - self.config.keep_recent_rounds)
        proposal = Proposal(view.total, self.config.max_context_tokens, least)
        # A person may be asked, who takes as long as it takes.
        answer = call_hook(self._confirm, proposal, seconds=math.inf)
        if answer is True:
            return None
        if answer is False:
            return self.config.on_refusal
        if answer not in get_args(Refusal):
            raise ConfigError(f"confirm returns a bool or one of {get_args(Refusal)}, not {answer!r:.60}")
        refusal: Refusal = answer
        return refusal

    def _plan(self, view: _View, refusal: Refusal | None) -> _Plan | None:
        """Return how many rounds stay and what is said of the others; None if none has to leave.

        Raises `ContextFullError` if what must stay is over the window.
        """
        plan = None
        for keep in self._choices(view, refusal):
            if keep > 1 and view.tokens_kept(keep) >= self.config.trigger_tokens:
                continue
            plan = self._planned(view, keep, "" if refusal else self._summary(view, keep))
            if plan.tokens < self.config.trigger_tokens:
                break
        tokens = view.total if plan is None else plan.tokens
        if tokens > self.config.max_context_tokens:
            raise ContextFullError(
                f"max_context_tokens={self.config.max_context_tokens} cannot hold what must stay: {tokens} "
                "tokens of system prompt, tool definitions, summary and the last round; begin a new session, "
                "shorten them, take a larger window, or cut inside the round with SelectiveCompaction"
            )
        return plan

    def _choices(self, view: _View, refusal: Refusal | None) -> range:
        """Return how many rounds may stay, the best choice first."""
        if not self._may_leave(view):
            return range(0)
        most = {"new_session": 1, "drop_oldest": len(view.rounds)}
        keep = self.config.keep_recent_rounds if refusal is None else most[refusal]
        return range(min(keep, len(view.rounds) - 1), 0, -1)

    def _may_leave(self, view: _View) -> bool:
        """Tell whether a round may leave: the last never does, and recent ones only if it must be."""
        is_due = view.total >= self.config.trigger_tokens
        return len(view.rounds) > (1 if is_due else self.config.keep_recent_rounds)

    def _planned(self, view: _View, keep: int, summary: str) -> _Plan:
        notice = self._archive.notice(view.messages, view.leaving(keep), summary)
        stand_in = self._counter.message(as_user_message(notice.text(), view.messages[view.rounds[0][0]]))
        return _Plan(keep, notice, view.tokens_kept(keep) + stand_in)

    def _summary(self, view: _View, keep: int) -> str:
        leaving = [view.messages[i] for i in view.leaving(keep)]
        max_chars = self.config.summary_max_length
        return ask(self._summarizer, rounds_request(leaving, max_chars), max_chars)

    def _carried_out(self, view: _View, plan: _Plan) -> CompactResult:
        """Store what leaves, then replace it."""
        leaving, messages = view.leaving(plan.keep), view.messages
        text = self._archive.store(messages, leaving, plan.notice)
        stand_in = as_user_message(text, messages[leaving[0]])
        # System messages stay where they were, before or after what stands for the rounds between them.
        before = [messages[i] for i in view.head if i < leaving[0]]
        gone = set(leaving)
        after = [m for i, m in enumerate(messages) if i not in gone and i > leaving[0]]
        new_messages = [*before, stand_in, *after]
        new_tokens = view.fixed + sum(self._counter.messages(new_messages))
        count = len(view.rounds) - plan.keep
        result = CompactResult(new_messages, plan.notice.summary, view.total, new_tokens, count)
        self._tell(result)
        return result

    def _tell(self, result: CompactResult) -> None:
        before, after = result.original_token_count, result.new_token_count
        data = {
            "original_tokens": before,
            "new_tokens": after,
            "saved_ratio": result.saved_ratio,
            "summary": result.summary,
            "compacted_count": result.compacted_count,
        }
        detail = f"{result.compacted_count} rounds left: {before} tokens became {after}"
        self.events.emit(ContextEvent(EventType.CONTEXT_COMPACTED, detail, data))


def _unchanged(view: _View, error: OffloadError | None = None) -> CompactResult:
    return CompactResult(list(view.messages), "", view.total, view.total, 0, error)
