"""The policy of the preset: by size and type, and by age for ephemeral tools."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from offload.base.schema import Count, Flag, Seconds, SettingsModel
from offload.engine.policy import OffloadPolicy, policy_of
from offload.engine.policy.facts import PolicyName
from offload.errors import ConfigError
from offload.records.record.header import ITEM_TYPES

_OFFLOADED_TYPES = ("tool_result", "user_message", "skill_prompt")
# It is short already, and reading it back would undo the compaction.
_NEVER = "compaction_summary"


class DocumentRules(SettingsModel):
    """Arguments of `ContextFileSystem` that make its policy. Raises `ConfigError` for an invalid one."""

    _is_named = False

    offload_enabled: Flag = True
    offload_token_threshold: Count = 2000
    type_enabled: dict[str, Flag] = Field(default_factory=dict)
    ephemeral: dict[str, Count] = Field(default_factory=dict)
    ephemeral_keep_recent: Count | None = None
    ttl: Seconds | None = None

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        for item_type, is_offloaded in self.type_enabled.items():
            if item_type not in ITEM_TYPES:
                raise ValueError(
                    f"type_enabled: there is no type {item_type!r}; there are {', '.join(ITEM_TYPES)}"
                )
            if item_type == _NEVER and is_offloaded:
                raise ValueError(f"type_enabled: a {_NEVER} is never offloaded, got True")
        if self.ephemeral_keep_recent is not None and not self.ephemeral:
            raise ValueError("ephemeral_keep_recent needs ephemeral, the tools whose numbers it replaces")
        return self

    def policy(self, instead: OffloadPolicy | PolicyName | None) -> OffloadPolicy:
        """Return the policy, or the one to use `instead`, if no rule is set. Raises `ConfigError`."""
        if instead is not None:
            if self != DocumentRules():
                raise ConfigError("policy= replaces the rules: omit it, or set them in the policy")
            return policy_of(instead)
        types = {name: self._rule(name, min_tokens=self.offload_token_threshold + 1) for name in ITEM_TYPES}
        recent = self.ephemeral_keep_recent
        kept = self.ephemeral if recent is None else dict.fromkeys(self.ephemeral, recent)
        tools = {tool: self._rule("tool_result", min_tokens=1, keep_recent=n) for tool, n in kept.items()}
        # The threshold and the age alone decide, so any saving is enough.
        # A document of an answer would repeat another one.
        answers = {"enabled": False}
        return OffloadPolicy.model_validate(
            {"types": types, "tools": tools, "answers": answers, "min_saving": 1}
        )

    def _rule(self, item_type: str, **when: int) -> dict[str, Any]:
        """Return a rule as plain data: a placeholder has no preview, and the model sees the item once."""
        is_enabled = self.offload_enabled and self.type_enabled.get(item_type, item_type in _OFFLOADED_TYPES)
        return {"enabled": is_enabled, "after_replies": 1, "preview_chars": 0, "ttl": self.ttl, **when}
