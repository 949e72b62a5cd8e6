"""Which items of a context leave, type by type: rules, their default table, and a pure choice by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Self

from pydantic import model_validator

from offload.context import PRIORITIES, ContextItem, ItemType
from offload.errors import ConfigError
from offload.settings import Count, SettingsModel

Group = Sequence[ContextItem]


class RuleStrategy(StrEnum):
    """What becomes of the items of one type; the values are those of configuration files."""

    DROP = "drop"
    TRUNCATE = "truncate"
    NONE = "none"


class TypeRule(SettingsModel):
    """What becomes of the items of one type when a context is full.

    An assistant's message whose calls were answered goes by the rule of the results.

    Attributes:
        strategy: "drop" lets all of them leave, "truncate" all but the latest, "none" none.
        keep_recent: how many of the latest stay; only with "truncate".
    """

    strategy: RuleStrategy = RuleStrategy.NONE
    keep_recent: Count = 0

    @model_validator(mode="after")
    def _is_meant(self) -> Self:
        if self.keep_recent and self.strategy is not RuleStrategy.TRUNCATE:
            raise ValueError(f'keep_recent goes with strategy "truncate", not "{self.strategy}"')
        return self

    def staying(self, items: Sequence[ContextItem]) -> Sequence[ContextItem]:
        """Return which of `items`, all of this rule's type and oldest first, stay."""
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


def ruled(changes: Mapping[ItemType | str, TypeRule]) -> dict[ItemType, TypeRule]:
    """Return the default table with `changes`, in the order in which types are compacted.

    Raises `ConfigError` if one names no type, or is no rule.
    """
    rules = dict(DEFAULT_RULES)
    for name, rule in changes.items():
        if name not in PRIORITIES:
            raise ConfigError(f"rules: there is no type {name!r:.40}; there are {', '.join(PRIORITIES)}")
        if not isinstance(rule, TypeRule):
            raise ConfigError(f"rules[{str(name)!r}] is a TypeRule, not {type(rule).__name__}")
        rules[ItemType(name)] = rule
    return dict(sorted(rules.items(), key=lambda entry: PRIORITIES[entry[0]]))


def chosen(
    groups: Sequence[Group], rules: Mapping[ItemType, TypeRule], kept: Iterable[ContextItem]
) -> Iterator[list[ContextItem]]:
    """Yield what leaves by each rule, in the order of the rules and of the context.

    A group leaves whole or stays whole. It stays if it holds what is `kept`, what the rule or an earlier
    one keeps, or what no rule lets go.

    Args:
        groups: the conversation in runs that stay or leave together.
        rules: by type, in the order in which they are applied.
        kept: what stays whatever the rules say.
    """
    staying = {item.id for item in kept}
    staying |= {i.id for group in groups for i in _ruled(group) if rules.get(i.item_type, _NONE) == _NONE}
    left = list(groups)
    for item_type, rule in rules.items():
        items = [item for group in left for item in _ruled(group) if item.item_type is item_type]
        staying |= {item.id for item in rule.staying(items)}
        wanted = {item.id for item in items} - staying
        going, left = _parted(left, wanted, staying)
        yield going


def _ruled(group: Group) -> Sequence[ContextItem]:
    """Return the items of a group that rules are applied to: a call goes by the rule of its results."""
    if all(item.item_type is not ItemType.TOOL_RESULT for item in group):
        return group
    return [item for item in group if item.item_type is not ItemType.ASSISTANT_MESSAGE]


def _parted(
    groups: Sequence[Group], wanted: set[str], staying: set[str]
) -> tuple[list[ContextItem], list[Group]]:
    """Return the items of the groups with what is wanted and nothing that stays, and the other groups."""
    going: list[ContextItem] = []
    left: list[Group] = []
    for group in groups:
        ids = {item.id for item in group}
        if wanted.isdisjoint(ids) or not staying.isdisjoint(ids):
            left.append(group)
        else:
            going += group
    return going, left
