"""The settings of an agent loop's context, in one object."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from offload.compaction import TypeRule
from offload.compaction._windows import window_for
from offload.context import ItemType
from offload.policy import OffloadPolicy
from offload.settings import Count, Flag, Fraction, LoadableSettings, Size


class AgentConfig(LoadableSettings):
    """When the context of an agent is made smaller, and how far.

    Attributes:
        model: the model that is asked; the corrections of the token estimate are kept by its name.
        window_tokens: its context window, in tokens; None is what `offload.compaction.threshold_for` knows.
        trigger_ratio: from which part of the window on a request is made smaller.
        target_ratio: down to which part of it; well below the trigger, so that it is done rarely, and the
            provider's cache holds in between.
        max_item_ratio: what alone takes more than this part of the window leaves at the next trigger,
            though the model has not seen it yet.
        keep_recent: how many of the latest results of each tool stay in view while older ones leave.
        rules: item type → what becomes of such messages when whole messages leave; these change the table
            `DEFAULT_RULES` of `offload.compaction`.
        policy: what is offloaded; without it, what the offloader does by itself.
        resumable: whether the conversation is written down, so that another process can go on with it.
    """

    _table: ClassVar = ("tool", "offload", "agent")
    _variable: ClassVar = "OFFLOAD_AGENT"

    model: str = ""
    window_tokens: Size | None = None
    trigger_ratio: Fraction = 0.8
    target_ratio: Fraction = 0.6
    max_item_ratio: Fraction = 0.25
    keep_recent: Count = 3
    rules: dict[ItemType | str, TypeRule] = Field(default_factory=dict)
    policy: OffloadPolicy | None = None
    resumable: Flag = True

    @model_validator(mode="after")
    def _target_below_trigger(self) -> Self:
        if self.target_ratio > self.trigger_ratio:
            raise ValueError(
                f"target_ratio={self.target_ratio} is at most trigger_ratio={self.trigger_ratio}"
            )
        return self

    @property
    def window(self) -> int:
        """The context window, in tokens."""
        return window_for(self.model, {}) if self.window_tokens is None else self.window_tokens

    @property
    def trigger_tokens(self) -> int:
        """From how many tokens on a request is made smaller."""
        return int(self.window * self.trigger_ratio)

    @property
    def target_tokens(self) -> int:
        """Below how many tokens it is then."""
        return int(self.window * self.target_ratio)
