"""The policy of the preset: by size and type, and by age for ephemeral tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from offload.errors import ConfigError
from offload.policy import OffloadPolicy
from offload.record.header import ITEM_TYPES

THRESHOLD = 2000
_OFFLOADED_TYPES = ("tool_result", "user_message", "skill_prompt")
# It is short already, and reading it back would undo the compaction.
_NEVER = "compaction_summary"


@dataclass(frozen=True, kw_only=True)
class DocumentRules:
    """Arguments of `ContextFileSystem` that make its policy. Raises `ConfigError` for an invalid one."""

    is_enabled: bool = True
    threshold: int = THRESHOLD
    types: Mapping[str, bool] = field(default_factory=dict)
    ephemeral: Mapping[str, int] = field(default_factory=dict)
    keep_recent: int | None = None
    ttl: float | str | timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.is_enabled, bool):
            raise ConfigError(f"offload_enabled must be a bool, got {self.is_enabled!r:.60}")
        if type(self.threshold) is not int or self.threshold < 0:
            raise ConfigError(
                f"offload_token_threshold must be an integer of at least 0, got {self.threshold!r:.60}"
            )
        for name, given in (("type_enabled", self.types), ("ephemeral", self.ephemeral)):
            if not isinstance(given, Mapping):
                raise ConfigError(f"{name} must be a mapping, got {given!r:.60}")
        for item_type, is_offloaded in self.types.items():
            self._check_type(item_type, is_offloaded)
        if self.keep_recent is not None and not self.ephemeral:
            raise ConfigError("ephemeral_keep_recent needs ephemeral, the tools whose numbers it replaces")

    def _check_type(self, item_type: str, is_offloaded: bool) -> None:
        if item_type not in ITEM_TYPES or not isinstance(is_offloaded, bool):
            known = ", ".join(ITEM_TYPES)
            raise ConfigError(
                f"type_enabled must map {known} to bools, got {item_type!r}: {is_offloaded!r:.60}"
            )
        if item_type == _NEVER and is_offloaded:
            raise ConfigError(f"type_enabled: a {_NEVER} is never offloaded, got True")

    def policy(self, instead: OffloadPolicy | None) -> OffloadPolicy:
        """Return the policy, or the one to use `instead`, if no rule is set. Raises `ConfigError`."""
        if instead is not None:
            if self != DocumentRules():
                raise ConfigError("policy= replaces the rules: omit it, or set them in the policy")
            return instead
        types = {name: self._rule(name, min_tokens=self.threshold + 1) for name in ITEM_TYPES}
        kept = self.ephemeral if self.keep_recent is None else dict.fromkeys(self.ephemeral, self.keep_recent)
        tools = {tool: self._rule("tool_result", min_tokens=1, keep_recent=n) for tool, n in kept.items()}
        # The threshold and the age alone decide, so any saving is enough.
        return OffloadPolicy.model_validate({"types": types, "tools": tools, "min_saving": 1})

    def _rule(self, item_type: str, **when: int) -> dict[str, Any]:
        """Return a rule as plain data: a placeholder has no preview, and the model sees the item once."""
        is_enabled = self.is_enabled and self.types.get(item_type, item_type in _OFFLOADED_TYPES)
        return {"enabled": is_enabled, "after_turns": 1, "preview_chars": 0, "ttl": self.ttl, **when}
