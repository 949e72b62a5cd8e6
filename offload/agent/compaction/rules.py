"""Rules for compaction by type: their default table, and the messages that they remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import compress
from operator import not_
from typing import Self

from pydantic import model_validator

from offload.base.schema import Count, SettingsModel
from offload.errors import ConfigError, check_kind
from offload.messages.context import ItemType
from offload.messages.context.ir import PRIORITIES

# Indices of messages.
Group = Sequence[int]


class RuleStrategy(StrEnum):
    """The effect of a rule; the values are those of settings files."""

    DROP = "drop"
    TRUNCATE = "truncate"
    NONE = "none"


class TypeRule(SettingsModel):
    """The rule for the items of one type when a context is full.

    The rule for tool results also applies to the assistant messages with their calls.

    Attributes:
        strategy: "drop" removes all of them, "truncate" all except the latest, "none" none.
        keep_recent: how many of the latest are kept; only with "truncate".
    """

    strategy: RuleStrategy = RuleStrategy.NONE
    keep_recent: Count = 0

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.keep_recent and self.strategy is not RuleStrategy.TRUNCATE:
            raise ValueError(f'keep_recent needs strategy "truncate", got "{self.strategy}"')
        return self

    def kept(self, items: Sequence[int]) -> Sequence[int]:
        """Return which of `items`, all of this rule's type and oldest first, are kept."""
        keep = len(items) if self.strategy is RuleStrategy.NONE else self.keep_recent
        return items[max(0, len(items) - keep) :]


_NONE, _DROP = TypeRule(), TypeRule(strategy=RuleStrategy.DROP)
_LAST_FIVE = TypeRule(strategy=RuleStrategy.TRUNCATE, keep_recent=5)

DEFAULT_RULES: Mapping[ItemType, TypeRule] = {
    ItemType.TOOL_RESULT: TypeRule(strategy=RuleStrategy.TRUNCATE, keep_recent=3),
    ItemType.SKILL_PROMPT: _DROP,
    ItemType.SKILL_METADATA: _DROP,
    ItemType.ASSISTANT_MESSAGE: _LAST_FIVE,
    ItemType.USER_MESSAGE: _LAST_FIVE,
    ItemType.SYSTEM_PROMPT: _NONE,
    ItemType.SUBAGENT_STRATEGY: _NONE,
    ItemType.COMPACTION_SUMMARY: _NONE,
    # The next notice says of the earlier ones how to read them back.
    ItemType.COMPACTION_NOTICE: _DROP,
}


def merge_rules(changes: Mapping[ItemType | str, TypeRule]) -> dict[ItemType, TypeRule]:
    """Return the default table with `changes`, in the order in which types are compacted."""
    rules = dict(DEFAULT_RULES)
    check_kind("rules", changes, Mapping)
    for name, rule in changes.items():
        if name not in PRIORITIES:
            raise ConfigError(f"rules: there is no type {name!r:.40}; there are {', '.join(PRIORITIES)}")
        if not isinstance(rule, TypeRule):
            raise ConfigError(f"rules[{str(name)!r}] must be a TypeRule, got {type(rule).__name__}")
        rules[ItemType(name)] = rule
    return dict(sorted(rules.items(), key=lambda entry: PRIORITIES[entry[0]]))


def removed_by_rule(
    groups: Sequence[Group], types: Sequence[ItemType], rules: Mapping[ItemType, TypeRule], past: int
) -> Iterator[list[int]]:
    """Yield the messages that each rule removes, in the order of the rules and of the conversation.

    A group of `groups` is removed whole or kept whole. It is kept if it is not before the first open call, at
    index `past`, or has an item that this rule or an earlier one keeps, or an item without a rule.
    """
    kept = {i for group in groups for i in _targets(group, types) if rules.get(types[i], _NONE) == _NONE}
    remaining = list(groups)
    for item_type, rule in rules.items():
        items = [i for group in remaining for i in _targets(group, types) if types[i] is item_type]
        kept |= set(rule.kept(items))
        removable = set(items) - kept
        is_removed = [
            group[-1] < past and not removable.isdisjoint(group) and kept.isdisjoint(group)
            for group in remaining
        ]
        yield [i for group in compress(remaining, is_removed) for i in group]
        remaining = list(compress(remaining, map(not_, is_removed)))


def _targets(group: Group, types: Sequence[ItemType]) -> Sequence[int]:
    """Return the items of a group with rules of their own: the rule for its results removes a call."""
    if all(types[i] is not ItemType.TOOL_RESULT for i in group):
        return group
    return [i for i in group if types[i] is not ItemType.ASSISTANT_MESSAGE]
