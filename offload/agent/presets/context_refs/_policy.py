"""Which outputs become context files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import InstanceOf

from offload.agent.presets.context_refs._lines import PREVIEW_CHARS, exit_chars
from offload.agent.presets.context_refs._tools import RETRIEVAL_TOOLS, ToolGroups
from offload.engine.policy import ItemFacts, OffloadPolicy, Rule
from offload.engine.policy.facts import Readers
from offload.engine.policy.models import HistoryRule
from offload.records.record.header import OffloadableType

BASH_BYTES = 5 * 1024
TOOL_BYTES = 1024
HISTORY_PREVIEW_CHARS = 200
_BASH = Rule(min_bytes=BASH_BYTES + 1, preview_chars=PREVIEW_CHARS)
_TOOL = Rule(min_bytes=TOOL_BYTES + 1, preview_chars=PREVIEW_CHARS)
_ANY_SIZE = Rule(min_chars=1, preview_chars=HISTORY_PREVIEW_CHARS)
_NEVER = Rule(enabled=False)
_OTHER_TYPES: tuple[OffloadableType, ...] = ("tool_call", "user_message", "skill_prompt")
_HISTORY_TYPES: tuple[OffloadableType, ...] = (
    "tool_result",
    "user_message",
    "assistant_message",
    "skill_prompt",
)


class HistoryPolicy(OffloadPolicy):
    """Offloads messages of any size; results of tools that paginate only above `max_view_tokens`."""

    _types: ClassVar[Mapping[str, Rule]] = {"tool_call": _NEVER, **dict.fromkeys(_HISTORY_TYPES, _ANY_SIZE)}
    groups: InstanceOf[ToolGroups] = ToolGroups()

    @classmethod
    def of(cls, groups: ToolGroups, history: HistoryRule = "auto") -> Self:
        return cls(
            types=cls._types, exclude_tools=RETRIEVAL_TOOLS, min_saving=0, groups=groups, history=history
        )

    def rule_for(self, item: ItemFacts, file_readers: Readers = "keep") -> Rule:
        """Return the rule for an item; one in `tools` wins over those for groups."""
        rule = super().rule_for(item, file_readers)
        if rule is not self.types["tool_result"] or not self.groups.keeps(item.tool_name):
            return rule
        if self.max_view_tokens is None:
            return _NEVER
        return Rule(min_tokens=self.max_view_tokens + 1, preview_chars=PREVIEW_CHARS)


class RefPolicy(HistoryPolicy):
    """Offloads shell output above 5 KB and other results above 1 KB, without counting an exit code."""

    _types: ClassVar = {"tool_result": _TOOL, **dict.fromkeys(_OTHER_TYPES, _NEVER)}

    def rule_for(self, item: ItemFacts, file_readers: Readers = "keep") -> Rule:
        rule = super().rule_for(item, file_readers)
        is_bash = self.groups.category(item.item_type, item.tool_name) == "Bash"
        return _BASH if rule is self.types["tool_result"] and is_bash else rule

    @property
    def counts_bytes(self) -> bool:
        return True

    def bytes_of(self, text: str) -> int:
        """Return the size of an output without the line of its exit code."""
        return super().bytes_of(text) - exit_chars(text)
