"""The steps that make a context smaller when it nears its window, the mildest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from offload.agent._config import OF_BUILT_IN, AgentConfig
from offload.agent._confirmation import Confirmation, ConfirmedStrategy
from offload.agent._messages import AgentMessages
from offload.compaction import CompactionStrategy, RoundStrategy, SelectiveCompaction, Summarizer
from offload.context import EventBus
from offload.errors import ConfigError, OffloadError
from offload.offloader import Offloader
from offload.options import OnError
from offload.policy import OffloadPolicy, Rule, Sweep
from offload.record import OffloadableType

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

# The number of tokens at which a step runs, and the step: it gets the current number, and returns failures.
Step = tuple[int, Callable[[AgentMessages, int], list[OffloadError]]]


class ContextReducer:
    """The steps that make a context smaller; `strategy` is the last one that removes messages.

    The steps `unseen` keep results that the model has not seen as long as anything else can be offloaded or
    removed; the steps `seen` are for a model that has seen all messages.
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
        trigger, target = config.trigger_tokens, config.target_tokens
        mild, self.strategy = _strategies(
            offloader,
            config,
            summarizer=summarizer,
            strategy=strategy,
            confirmation=confirmation,
            events=events,
        )
        giants = Rule(min_tokens=max(1, int(config.window * config.max_item_ratio)))
        by_sweep_alone = Rule(min_tokens=config.window, preview_chars=_SHORT_PREVIEW)
        worth_it = Rule(min_tokens=_WORTH_IT, preview_chars=_SHORT_PREVIEW)
        # Results that the model has answered, except the latest of each tool.
        old = Sweep(trigger_tokens=1, keep_recent=config.keep_recent)
        sweep = (target, _offloading(offloader, by_sweep_alone, ("tool_result", "tool_call"), old))
        compact = partial(_compacting, confirmation)
        # Nobody is asked for more room than is needed.
        limit = target if confirmation is None else trigger
        self.unseen: Sequence[Step] = (
            (trigger, _offloading(offloader, giants)),
            sweep,
            (limit, compact(mild)),
            (trigger, _offloading(offloader, worth_it)),
            (trigger, compact(self.strategy)),
            *((config.window + 1, _relieving(offloader, *least)) for least in _LAST_RESORTS),
        )
        self.seen: Sequence[Step] = (sweep, (limit, compact(self.strategy)))


def _strategies(
    offloader: Offloader,
    config: AgentConfig,
    *,
    summarizer: Summarizer | None,
    strategy: CompactionStrategy | None,
    confirmation: Confirmation | None,
    events: EventBus,
) -> tuple[CompactionStrategy, CompactionStrategy]:
    """Return a strategy that keeps the latest messages, and one that may also replace all by a summary.

    Raises `ConfigError` for settings that have no effect.
    """
    if strategy is not None:
        if summarizer is not None or OF_BUILT_IN & config.model_fields_set:
            raise ConfigError(
                "summarizer= and the settings strategy, rules, keep_recent_rounds and summary_max_length "
                "apply without strategy= only; pass them to the strategy"
            )
        some: tuple[CompactionStrategy, CompactionStrategy] = strategy, strategy
    elif config.strategy == "rounds":
        rounds = config.rounds(is_confirmed=confirmation is not None)
        by_rounds = RoundStrategy(offloader, summarizer, rounds, confirm=confirmation, events=events)
        return by_rounds, by_rounds
    else:
        selective = partial(
            SelectiveCompaction,
            offloader,
            rules=config.rules,
            threshold_tokens=config.target_tokens,
            events=events,
        )
        some = selective(summarizer, replaces_all=False), selective(summarizer)
    if confirmation is None:
        return some
    rounds = config.rounds(is_confirmed=True)
    refused = RoundStrategy(offloader, None, rounds, confirm=confirmation, events=events)
    mild, full = (ConfirmedStrategy(one, refused, confirmation, config.window) for one in some)
    return mild, full


def _offloading(
    offloader: Offloader,
    rule: Rule,
    types: Sequence[OffloadableType] = _OFFLOADED,
    sweep: Sweep | None = None,
) -> Callable[[AgentMessages, int], list[OffloadError]]:
    """Return the action that offloads items of `types` by `rule`, and no others."""
    policy = OffloadPolicy(
        types=dict.fromkeys(get_args(OffloadableType), Rule(enabled=False)) | dict.fromkeys(types, rule),
        tools={},
        exclude_tools=offloader.policy.exclude_tools,
        sweep=sweep,
    )
    return _offloading_by(offloader, policy)


def _relieving(
    offloader: Offloader, min_tokens: int, preview_chars: int
) -> Callable[[AgentMessages, int], list[OffloadError]]:
    """Return the action that offloads every item of `min_tokens`, also errors, images, and what a rule keeps.

    Only the system prompt, what `should_offload` keeps and what code reads is kept.
    """
    rule = Rule(min_tokens=min_tokens, preview_chars=preview_chars)
    by_type = dict.fromkeys(get_args(OffloadableType), Rule(enabled=False)) | dict.fromkeys(_OFFLOADED, rule)
    policy = OffloadPolicy(
        types=by_type | {"user_message": Rule(min_tokens=min_tokens, preview_chars=_TASK_PREVIEW)},
        tools={},
        media=rule,
        user_media=rule,
        # Errors leave above the ceiling alone.
        max_view_tokens=min_tokens,
        min_saving=_LEAST_SAVING,
    )
    offload = _offloading_by(offloader, policy)

    def relieve(messages: AgentMessages, tokens: int) -> list[OffloadError]:
        # The ceiling is none of the caller's; the request's own error names what is still too large.
        notes = f"max_view_tokens ({min_tokens})"
        return [error for error in offload(messages, tokens) if notes not in str(error)]

    return relieve


def _offloading_by(
    offloader: Offloader, policy: OffloadPolicy
) -> Callable[[AgentMessages, int], list[OffloadError]]:
    # Later turns start from the placeholders, so the items must be in the store: "truncate" is not allowed.
    on_error: OnError = "raise" if offloader.options.on_error == "raise" else "keep"
    other = offloader.with_options(policy=policy, on_error=on_error)
    return lambda messages, _tokens: messages.offload(other, for_good=True).errors


def _compacting(
    confirmation: Confirmation | None, strategy: CompactionStrategy
) -> Callable[[AgentMessages, int], list[OffloadError]]:
    def compact(messages: AgentMessages, tokens: int) -> list[OffloadError]:
        is_closed = confirmation is not None and confirmation.is_closed
        return [] if is_closed else messages.compact(strategy, tokens)

    return compact
