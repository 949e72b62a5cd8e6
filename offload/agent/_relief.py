"""What makes a context smaller that nears its window, step by step, the mildest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from offload.agent._config import AgentConfig
from offload.agent._held import HeldMessages
from offload.compaction import SelectiveCompaction, Summarizer
from offload.context import EventBus
from offload.errors import OffloadError
from offload.offloader import Offloader
from offload.options import OnError
from offload.policy import OffloadPolicy, Rule, Sweep
from offload.record import ItemType

# What an item takes that is worth a placeholder, once nothing milder helps.
_WORTH_IT = 300
_SHORT_PREVIEW = 300
_OFF = Rule(enabled=False)

# From how many tokens on something is done, and what: it is given their number, and returns what failed.
Step = tuple[int, Callable[[HeldMessages, int], list[OffloadError]]]


class Relief:
    """The steps that make a context smaller.

    Args:
        offloader: the session that things leave to, by the policy that always holds.
        config: the settings.
        summarizer: asks a model for a summary.
        events: told of compactions.

    Attributes:
        unseen: what is done while there are results that the model has not seen: they stay in view as
            long as anything else can go.
        seen: what is done once the model has seen everything.
        compaction: the last of both.
    """

    def __init__(
        self, offloader: Offloader, config: AgentConfig, summarizer: Summarizer | None, events: EventBus
    ) -> None:
        def compaction(asked: Summarizer | None) -> SelectiveCompaction:
            return SelectiveCompaction(
                offloader, asked, rules=config.rules, threshold_tokens=config.target_tokens, events=events
            )

        trigger, target = config.trigger_tokens, config.target_tokens
        exclude = offloader.policy.exclude_tools
        self.compaction = compaction(summarizer)
        sweep = (target, _offloading(offloader, _without_old_results(config, exclude)))
        compact = _compacting(self.compaction)
        self.unseen: Sequence[Step] = (
            (trigger, _offloading(offloader, _without_giants(config, exclude))),
            sweep,
            (target, _compacting(compaction(None))),
            (trigger, _offloading(offloader, _with_short_previews(exclude))),
            (trigger, compact),
        )
        self.seen: Sequence[Step] = (sweep, (target, compact))


def _offloading(
    offloader: Offloader, policy: OffloadPolicy
) -> Callable[[HeldMessages, int], list[OffloadError]]:
    # What is given up for good must be in the store, whatever else may be cut.
    on_error: OnError = "raise" if offloader.options.on_error == "raise" else "keep"
    other = offloader.with_options(policy=policy, on_error=on_error)
    return lambda held, _tokens: held.offload(other, for_good=True)


def _compacting(strategy: SelectiveCompaction) -> Callable[[HeldMessages, int], list[OffloadError]]:
    return lambda held, tokens: held.compact(strategy, tokens)


def _without_giants(config: AgentConfig, exclude: Sequence[str]) -> OffloadPolicy:
    """Return the policy by which no item takes more than its part of the window."""
    most = max(1, int(config.window * config.max_item_ratio))
    return _policy(_everything(Rule(min_tokens=most)), exclude)


def _without_old_results(config: AgentConfig, exclude: Sequence[str]) -> OffloadPolicy:
    """Return the policy that sweeps what the model has answered, but for the latest of each tool."""
    by_sweep_alone = Rule(min_tokens=config.window, preview_chars=_SHORT_PREVIEW)
    types: Mapping[ItemType, Rule] = {"tool_result": by_sweep_alone, "tool_call": by_sweep_alone}
    sweep = Sweep(trigger_tokens=1, keep_recent=config.keep_recent)
    return _policy({**_everything(_OFF), **types}, exclude, sweep)


def _with_short_previews(exclude: Sequence[str]) -> OffloadPolicy:
    """Return the policy that leaves little of all that is worth it."""
    return _policy(_everything(Rule(min_tokens=_WORTH_IT, preview_chars=_SHORT_PREVIEW)), exclude)


def _everything(rule: Rule) -> dict[ItemType, Rule]:
    """Return `rule` for every type but those that never leave."""
    return {**dict.fromkeys(get_args(ItemType), rule), "system_prompt": _OFF, "compaction_summary": _OFF}


def _policy(
    types: Mapping[ItemType, Rule], exclude: Sequence[str], sweep: Sweep | None = None
) -> OffloadPolicy:
    return OffloadPolicy(types=dict(types), tools={}, exclude_tools=tuple(exclude), sweep=sweep)
