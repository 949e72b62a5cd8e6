"""The steps that make a context smaller when it nears its window, the mildest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

from offload.agent._config import OF_BUILT_IN, AgentConfig
from offload.agent._confirmation import Confirmation, ConfirmedStrategy
from offload.agent._messages import AgentMessages
from offload.agent.compaction import CompactionStrategy, RoundStrategy, SelectiveCompaction, Summarizer
from offload.engine.failures import AboveCeilingError
from offload.engine.policy import OffloadPolicy, Rule, Sweep
from offload.engine.policy.models import HistoryRule
from offload.errors import ConfigError, OffloadError
from offload.messages.context import EventBus
from offload.offloader import Offloader
from offload.records.record.header import OffloadableType

# The tokens of an item that is worth a placeholder, if no milder step was enough.
_WORTH_IT = 300
_SHORT_PREVIEW = 300
# Its tokens, and the characters of its preview, for a request above the window.
_LAST_RESORTS = ((_WORTH_IT, _SHORT_PREVIEW), (120, 0))
_LEAST_SAVING = 30
# A user's text may be the task: its preview has the first lines.
_TASK_PREVIEW = 1000
_OFFLOADED: Sequence[OffloadableType] = [
    name for name in get_args(OffloadableType) if name not in ("system_prompt", "compaction_summary")
]

# Where thinking is bound, an edit must free this part of the room between trigger and target.
_LEAST_SHARE = 0.5

# A reduction gets the current number of tokens, and returns failures; a step runs it at some number or more.
Reduction = Callable[[AgentMessages, int], list[OffloadError]]
Step = tuple[int, Reduction]


class ContextReducer:
    """The steps that make a context smaller; `strategy` is the last one that removes messages.

    `limit` are the tokens that a compaction must get below.

    The steps `fresh` change only what may change freely: in a bound conversation messages that were not sent.
    The steps `unseen` keep results that the model has not seen as long as anything else can be offloaded or
    removed; the steps `seen` are for a model that has seen all messages. In a bound conversation both also
    remove the signed thinking after their first change.
    """

    def __init__(
        self,
        offloader: Offloader,
        config: AgentConfig,
        *,
        summarizer: Summarizer | None,
        strategy: CompactionStrategy | None,
        confirmation: Confirmation | None,
        events: EventBus,
    ) -> None:
        self._offloader, self._config, self._events = offloader, config, events
        self._confirmation = confirmation
        trigger, target = config.trigger_tokens, config.target_tokens
        mild, self.strategy = self._strategies(summarizer, strategy)
        giants = Rule(min_tokens=max(1, int(config.window * config.max_item_ratio)))
        history = offloader.policy.history
        self._history: HistoryRule = "editable" if history == "editable" else "rewrite"
        by_sweep_alone = Rule(min_tokens=config.window, preview_chars=_SHORT_PREVIEW)
        worth_it = Rule(min_tokens=_WORTH_IT, preview_chars=_SHORT_PREVIEW)
        # Results that the model has answered, except the latest of each tool.
        old = Sweep(trigger_tokens=1, keep_recent=config.keep_recent)
        much = old.model_copy(update={"clear_at_least": int((trigger - target) * _LEAST_SHARE)})
        swept = partial(self._offloading, by_sweep_alone, ("tool_result", "tool_call"))
        sweep = (target, self._if_bound(swept(sweep=much), swept(sweep=old)))
        # Nobody is asked for more room than is needed.
        self.limit = limit = target if confirmation is None else trigger
        self.fresh: Sequence[Step] = ((trigger, self._offloading(giants, history=history)),)
        self.unseen: Sequence[Step] = (
            (trigger, self._offloading(giants)),
            sweep,
            (limit, partial(self._compact, mild)),
            (trigger, self._offloading(worth_it)),
            (trigger, partial(self._compact, self.strategy)),
            *((config.window + 1, self._relieving(*least)) for least in _LAST_RESORTS),
        )
        self.seen: Sequence[Step] = (sweep, (limit, partial(self._compact, self.strategy)))

    def _strategies(
        self, summarizer: Summarizer | None, strategy: CompactionStrategy | None
    ) -> tuple[CompactionStrategy, CompactionStrategy]:
        """Return a strategy that keeps the latest messages, and one that may also replace all by a summary.

        Raises `ConfigError` for settings that have no effect.
        """
        config = self._config
        if strategy is not None:
            if summarizer is not None or OF_BUILT_IN & config.model_fields_set:
                raise ConfigError(
                    "summarizer= and the settings strategy, rules, keep_recent_rounds and summary_max_length "
                    "apply without strategy= only; pass them to the strategy"
                )
            some: tuple[CompactionStrategy, CompactionStrategy] = strategy, strategy
        elif config.strategy == "rounds":
            by_rounds = self._by_rounds(summarizer)
            return by_rounds, by_rounds
        else:
            selective = partial(
                SelectiveCompaction,
                self._offloader,
                rules=config.rules,
                threshold_tokens=config.target_tokens,
                window_tokens=config.window,
                events=self._events,
                grounding=config.grounding,
            )
            some = selective(summarizer, replaces_all=False), selective(summarizer)
        if self._confirmation is None:
            return some
        refused = self._by_rounds(None)
        mild, full = (ConfirmedStrategy(one, refused, self._confirmation, config.window) for one in some)
        return mild, full

    def _by_rounds(self, summarizer: Summarizer | None) -> RoundStrategy:
        rounds = self._config.rounds(is_confirmed=self._confirmation is not None)
        return RoundStrategy(
            self._offloader, summarizer, rounds, confirm=self._confirmation, events=self._events
        )

    def _if_bound(self, reduction: Reduction, other: Reduction) -> Reduction:
        """Return the reduction that runs one in a bound conversation, the other one elsewhere."""

        def run(messages: AgentMessages, tokens: int) -> list[OffloadError]:
            is_bound = self._offloader.is_bound(messages.context.conversation_messages)
            return (reduction if is_bound else other)(messages, tokens)

        return run

    def _offloading(
        self, rule: Rule, types: Sequence[OffloadableType] = _OFFLOADED, **policy: Any
    ) -> Reduction:
        """Return the reduction that offloads items of `types` by `rule`, and no others."""
        kept = self._offloader.policy.exclude_tools
        return self._offloading_by(types=_rules(rule, types), exclude_tools=kept, **policy)

    def _relieving(self, min_tokens: int, preview_chars: int) -> Reduction:
        """Return the reduction that offloads items of `min_tokens`: also errors, images, what a rule keeps.

        Only the system prompt, what `should_offload` keeps and what code reads is kept.
        """
        rule = Rule(min_tokens=min_tokens, preview_chars=preview_chars)
        task = Rule(min_tokens=min_tokens, preview_chars=_TASK_PREVIEW)
        offload = self._offloading_by(
            types=_rules(rule) | {"user_message": task},
            tool_media=rule,
            user_media=rule,
            # Errors leave above the ceiling alone.
            max_view_tokens=min_tokens,
            min_saving=_LEAST_SAVING,
        )

        def make_room(messages: AgentMessages, tokens: int) -> list[OffloadError]:
            # The ceiling is none of the caller's; the request's own error names what is still too large.
            return [e for e in offload(messages, tokens) if not isinstance(e, AboveCeilingError)]

        return make_room

    def _offloading_by(self, **policy: Any) -> Reduction:
        other = OffloadPolicy(tools={}, **{"history": self._history, **policy})

        def offload(messages: AgentMessages, _tokens: int) -> list[OffloadError]:
            return messages.offload(self._offloader, self._offloader.model, other).errors

        return offload

    def _compact(
        self, strategy: CompactionStrategy, messages: AgentMessages, tokens: int
    ) -> list[OffloadError]:
        is_closed = self._confirmation is not None and self._confirmation.is_closed
        if is_closed or tokens < messages.wait.until:
            return []
        return messages.compact(strategy, tokens, self._offloader)


def _rules(rule: Rule, types: Sequence[OffloadableType] = _OFFLOADED) -> dict[OffloadableType, Rule]:
    """Return `rule` for the items of `types`, and for all others one that keeps them."""
    return dict.fromkeys(get_args(OffloadableType), Rule(enabled=False)) | dict.fromkeys(types, rule)
