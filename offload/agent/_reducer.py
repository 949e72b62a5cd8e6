"""The steps that make a context smaller when it nears its window, the mildest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

from offload.agent._config import AgentConfig
from offload.agent._messages import AgentMessages
from offload.compaction import CompactionStrategy, SelectiveCompaction, Summarizer
from offload.context import EventBus
from offload.errors import ConfigError, OffloadError
from offload.offloader import Offloader
from offload.options import OnError
from offload.policy import OffloadPolicy, Rule, Sweep
from offload.record import OffloadableType

# The tokens of an item that is worth a placeholder, if no milder step was enough.
_WORTH_IT = 300
_SHORT_PREVIEW = 300
_OFF = Rule(enabled=False)

# The number of tokens at which a step runs, and the step: it gets the current number, and returns failures.
Step = tuple[int, Callable[[AgentMessages, int], list[OffloadError]]]


class ContextReducer:
    """The steps that make a context smaller.

    Args:
        offloader: the session that items are offloaded to, with the policy of every turn.
        config: the settings.
        summarizer: asks a model for a summary.
        strategy: removes messages; the default is `SelectiveCompaction`.
        events: gets the events of compactions.

    Attributes:
        unseen: the steps while there are results that the model has not seen: these are kept as long as
            anything else can be offloaded or removed.
        seen: the steps once the model has seen all messages.
        strategy: the last step of both.

    Raises:
        ConfigError: there is a strategy, and settings that only apply without one.
    """

    def __init__(
        self,
        offloader: Offloader,
        config: AgentConfig,
        summarizer: Summarizer | None,
        strategy: CompactionStrategy | None,
        events: EventBus,
    ) -> None:
        trigger, target = config.trigger_tokens, config.target_tokens
        exclude = offloader.policy.exclude_tools
        if strategy is None:
            selective = partial(
                SelectiveCompaction, offloader, rules=config.rules, threshold_tokens=target, events=events
            )
            self.strategy: CompactionStrategy = selective(summarizer)
            without_summary: CompactionStrategy = selective()
        elif summarizer is not None or config.rules:
            raise ConfigError("summarizer= and rules apply without strategy= only; pass them to the strategy")
        else:
            self.strategy = without_summary = strategy
        sweep = (target, _offloading(offloader, _without_old_results(config, exclude)))
        self.unseen: Sequence[Step] = (
            (trigger, _offloading(offloader, _without_giants(config, exclude))),
            sweep,
            (target, _compacting(without_summary)),
            (trigger, _offloading(offloader, _with_short_previews(exclude))),
            (trigger, _compacting(self.strategy)),
        )
        self.seen: Sequence[Step] = (sweep, (target, _compacting(self.strategy)))


def _offloading(
    offloader: Offloader, policy: OffloadPolicy
) -> Callable[[AgentMessages, int], list[OffloadError]]:
    # Later turns start from the placeholders, so the items must be in the store: "truncate" is not allowed.
    on_error: OnError = "raise" if offloader.options.on_error == "raise" else "keep"
    other = offloader.with_options(policy=policy, on_error=on_error)
    return lambda messages, _tokens: messages.offload(other, for_good=True)


def _compacting(strategy: CompactionStrategy) -> Callable[[AgentMessages, int], list[OffloadError]]:
    return lambda messages, tokens: messages.compact(strategy, tokens)


def _without_giants(config: AgentConfig, exclude: Sequence[str]) -> OffloadPolicy:
    """Return the policy by which no item exceeds its part of the window."""
    most = max(1, int(config.window * config.max_item_ratio))
    return _policy(_everything(Rule(min_tokens=most)), exclude)


def _without_old_results(config: AgentConfig, exclude: Sequence[str]) -> OffloadPolicy:
    """Return the policy that sweeps results that the model has answered, except the latest of each tool."""
    by_sweep_alone = Rule(min_tokens=config.window, preview_chars=_SHORT_PREVIEW)
    types: Mapping[OffloadableType, Rule] = {"tool_result": by_sweep_alone, "tool_call": by_sweep_alone}
    sweep = Sweep(trigger_tokens=1, keep_recent=config.keep_recent)
    return _policy({**_everything(_OFF), **types}, exclude, sweep)


def _with_short_previews(exclude: Sequence[str]) -> OffloadPolicy:
    """Return the policy that offloads all items that are worth it, with short previews."""
    return _policy(_everything(Rule(min_tokens=_WORTH_IT, preview_chars=_SHORT_PREVIEW)), exclude)


def _everything(rule: Rule) -> dict[OffloadableType, Rule]:
    """Return `rule` for every type that may be offloaded."""
    return {
        **dict.fromkeys(get_args(OffloadableType), rule),
        "system_prompt": _OFF,
        "compaction_summary": _OFF,
    }


def _policy(
    types: Mapping[OffloadableType, Rule], exclude: Sequence[str], sweep: Sweep | None = None
) -> OffloadPolicy:
    return OffloadPolicy(types=dict(types), tools={}, exclude_tools=tuple(exclude), sweep=sweep)
