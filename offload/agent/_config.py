"""Settings of an agent's context."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from offload.agent.compaction import RoundConfig, TypeRule
from offload.agent.compaction._grounding import Grounding
from offload.agent.compaction._windows import window_for
from offload.agent.compaction.rounds import RefusalEffect
from offload.base.schema import Count, Flag, Fraction, LoadableSettings, Size
from offload.engine.policy import OffloadPolicy, Rule
from offload.messages.context import ItemType

# The settings that apply to one strategy only.
_OF_STRATEGY = {"selective": {"rules"}, "rounds": {"keep_recent_rounds", "summary_max_length"}}
# The settings that apply to both built-in strategies and to no other.
OF_BUILT_IN = {"strategy", *_OF_STRATEGY["selective"], *_OF_STRATEGY["rounds"]}


class AgentConfig(LoadableSettings):
    """Settings of `ContextManager`: when to reduce an agent's context, and by how much.

    Attributes:
        model: name of the model; token calibration is stored under it.
        window_tokens: context window in tokens; None takes it from `offload.threshold_for`.
        trigger_ratio: reduce a request that fills a larger fraction of the window.
        target_ratio: reduce it to this fraction, well below the trigger, so that reductions are rare and the
            provider's prompt cache is valid between them.
        max_item_ratio: offload an item above this fraction of the window at the next trigger, even if the
            model has not seen it.
        keep_recent: number of the latest results of each tool to keep in view.
        strategy: how whole messages are removed: "selective" by type, "rounds" the oldest rounds.
        rules: changes to the default rules, by item type; for "selective" only.
        keep_recent_rounds: how many of the latest rounds are kept; for "rounds" only.
        summary_max_length: the maximum length of a summary, in characters; for "rounds" only.
        require_confirmation: whether `confirm` of the manager is called before messages are removed; if it
            is set to True, the manager needs `confirm`.
        on_refusal: the effect if `confirm` returns False: "drop_oldest" removes as few rounds as possible,
            without a summary; "new_session" keeps only the current round; "error" removes nothing, and
            `errors` has a `RefusedError`.
        grounding: the effect of exact values, such as numbers and paths, in a summary or ledger that the
            messages do not have: "report" emits `ungrounded_text`, "retry" also asks for another summary
            first, once, "off" does not check.
        check_replies: whether to check each reply too, against all that the model was shown; see
            `ContextManager.last_evidence`.
        policy: which items are offloaded; the default is the offloader's policy.
        resumable: whether to store the conversation so that another process can resume it.
        ephemeral: number of latest outputs to keep in view per tool, by tool name or glob, ignoring case:
            `{"Read": 3}`. Older outputs that the model has replied to are offloaded before each call; the
            latest are kept at any size, up to the policy's `max_view_tokens`.
        ephemeral_keep_recent: replaces every number in `ephemeral`.
        offload_enabled: False offloads nothing by size or age; a request that nears the window is still made
            smaller. Like the next two, only for a manager without an offloader, which opens a
            `ContextFileSystem`.
        offload_token_threshold: offload items with more tokens than this.
        offload_root_path: `root` of the `ContextFileSystem`; None is `~/.agent/context/{session_id}`.
    """

    _table: ClassVar = ("tool", "offload", "agent")
    _variable: ClassVar = "OFFLOAD_AGENT"

    model: str = ""
    window_tokens: Size | None = None
    trigger_ratio: Fraction = 0.8
    target_ratio: Fraction = 0.6
    max_item_ratio: Fraction = 0.25
    keep_recent: Count = 3
    strategy: Literal["selective", "rounds"] = "selective"
    rules: dict[ItemType | str, TypeRule] = Field(default_factory=dict)
    keep_recent_rounds: Size = 2
    summary_max_length: Size = 1000
    require_confirmation: Flag = True
    on_refusal: RefusalEffect = "error"
    grounding: Grounding = "report"
    check_replies: Flag = False
    policy: OffloadPolicy | None = None
    resumable: Flag = True

    ephemeral: dict[str, Count] = Field(default_factory=dict)
    ephemeral_keep_recent: Count | None = None

    offload_enabled: Flag = True
    offload_token_threshold: Count = 2000
    offload_root_path: str | Path | None = None

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.target_ratio > self.trigger_ratio:
            raise ValueError(
                f"target_ratio={self.target_ratio} must be at most trigger_ratio={self.trigger_ratio}"
            )
        for strategy, names in _OF_STRATEGY.items():
            if strategy != self.strategy and (ineffective := names & self.model_fields_set):
                raise ValueError(f'{", ".join(sorted(ineffective))}: only with strategy="{strategy}"')
        if self.ephemeral_keep_recent is not None and not self.ephemeral:
            raise ValueError("ephemeral_keep_recent needs ephemeral, the tools whose numbers it replaces")
        if self.policy is not None and self.model_fields_set & {"offload_enabled", "offload_token_threshold"}:
            raise ValueError("offload_enabled and offload_token_threshold have no effect with policy")
        return self

    @property
    def file_system_settings(self) -> list[str]:
        """The names of the settings that are set and apply without an offloader only."""
        return sorted(name for name in self.model_fields_set if name.startswith("offload_"))

    @property
    def window(self) -> int:
        """The context window, in tokens."""
        return window_for(self.model, {}) if self.window_tokens is None else self.window_tokens

    @property
    def trigger_tokens(self) -> int:
        """Tokens above which a request is reduced."""
        return int(self.window * self.trigger_ratio)

    @property
    def target_tokens(self) -> int:
        """Tokens of a reduced request at most."""
        return int(self.window * self.target_ratio)

    def rounds(self, *, is_confirmed: bool) -> RoundConfig:
        """Return the settings of compaction by rounds: down to the target."""
        return RoundConfig(
            max_context_tokens=self.window,
            trigger_ratio=self.target_ratio,
            keep_recent_rounds=self.keep_recent_rounds,
            summary_max_length=self.summary_max_length,
            require_confirmation=is_confirmed,
            on_refusal=self.on_refusal,
            grounding=self.grounding,
        )

    def policy_over(self, default: OffloadPolicy) -> OffloadPolicy:
        """Return the policy of every turn; `default` is the offloader's."""
        policy = default if self.policy is None else self.policy
        if not (self.ephemeral and self.offload_enabled):
            return policy
        tools = {tool: self._ephemeral_rule(kept, policy) for tool, kept in self.ephemeral.items()}
        # The first match wins, also over a rule of the policy for the same name.
        return policy.model_copy(update={"tools": tools | policy.tools | tools})

    def _ephemeral_rule(self, kept: int, policy: OffloadPolicy) -> Rule:
        kept = kept if self.ephemeral_keep_recent is None else self.ephemeral_keep_recent
        ttl = policy.types["tool_result"].ttl
        return Rule(min_tokens=1, after_replies=1, keep_recent=kept, preview_chars=0, ttl=ttl)
