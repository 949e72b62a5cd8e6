"""The decision on one item: whether its rule offloads it, when, why, and with how much of a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from offload.engine.policy.facts import WRITTEN_BY_MODEL, Action, CostPlanItems, Decision, ItemFacts
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.policy.tool_names import matches_any, shows_file
from offload.records.record.retrieval import LIST, is_answer

if TYPE_CHECKING:
    from offload.engine.policy._rules import Rule

# A preview has at most this share of an item. One in place of the model's only look at a file is so much
# longer than a rule says, and that of what the model has seen is short: of what it wrote at most a part.
PREVIEW_SHARE, FILE_PREVIEWS, SEEN_PREVIEW_CHARS, WRITTEN_SHARE = 0.4, 3, 300, 8
# A result that a rule would show for some replies, and that cannot be offloaded later, is kept if it has
# fewer characters for each of them: an edit quotes some lines of a file of any size.
KEPT_CHARS = 1200
# Names in a text that is never seen: with the name of what it needs, the model searches for a few lines;
# without it reads whole pages, which are in view for good. At most this part of the text, and so many
# characters.
NAMES_SHARE, NAMES_CHARS = 4, 10_000

_PLACEHOLDER = Reason(ReasonKind.PLACEHOLDER)
_READ_BY_CODE = Reason(ReasonKind.READ_BY_CODE)
_PINNED = Reason(ReasonKind.PINNED)
_UNFINISHED = Reason(ReasonKind.UNFINISHED)
_RETRIEVAL = Reason(ReasonKind.RETRIEVAL)
_STORED_BEFORE = Reason(ReasonKind.STORED_BEFORE)
_TOOL_ERROR = Reason(ReasonKind.TOOL_ERROR)
_MODEL_WROTE = Reason(ReasonKind.MODEL_WROTE)
_SENT = Reason(ReasonKind.SENT)


class ItemLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits that a policy and a conversation set for every item.

    Attributes:
        excluded: as `exclude_tools` of the policy.
        ceiling: as `max_view_tokens` of the policy.
        cost_plan: as in the policy.
        is_bound: whether messages that were sent may not change.
    """

    excluded: tuple[str, ...]
    ceiling: int | None
    cost_plan: CostPlanItems
    is_bound: bool


def judge(rule: Rule, item: ItemFacts, limits: ItemLimits) -> Decision:
    """Decide on an item by its rule. Pure: equal facts give equal decisions.

    A sweep may still offload an item that is kept only for its size.
    """
    is_own_answer = is_answer(item.item_type, item.tool_name)
    shortfall = rule.shortfall(item)
    # The model needs a short error to correct its call. A long one is mostly the output of a command.
    is_small = shortfall is not None or item.is_error
    kept = _why_kept(rule, item, limits, is_own_answer=is_own_answer)
    is_exempt = kept is not None or item.media_type is not None or is_own_answer
    is_by_cost = False
    action: Action
    if kept is not None:
        action, reason = "keep", kept
    elif not is_exempt and _is_above_ceiling(item, limits):
        action, reason = "offload", Reason(ReasonKind.ABOVE_CEILING, item.tokens, limits.ceiling or 0)
    else:
        action, reason = _by_rule(rule, item, limits, shortfall)
        is_by_cost = not is_exempt and _is_by_cost(rule, item, limits, is_small=is_small)
    return Decision(
        item=item,
        action=action,
        reason=reason,
        preview_chars=_preview_chars(rule, item, limits, is_small=is_small),
        names_chars=_names_chars(item, limits),
        ref=None,
        tokens_after=item.tokens,
        ttl=rule.ttl,
        is_exempt=is_exempt,
        is_by_cost=is_by_cost,
    )


def _why_kept(rule: Rule, item: ItemFacts, limits: ItemLimits, *, is_own_answer: bool) -> Reason | None:
    """Return the reason to keep an item at any size, or None."""
    if (state := _why_untouchable(item)) is not None:
        return state
    if item.tool_name == LIST or (is_own_answer and not rule.enabled):
        return _RETRIEVAL
    if limits.excluded and matches_any(item.tool_name, limits.excluded):
        return Reason(ReasonKind.EXCLUDED, name=item.tool_name or "")
    return None if rule.enabled else Reason(ReasonKind.DISABLED, name=item.media_type or item.item_type)


def _why_untouchable(item: ItemFacts) -> Reason | None:
    """Return the reason to keep an item under any rule, or None."""
    if item.is_stored:
        return _PLACEHOLDER
    if item.is_programmatic:
        return _READ_BY_CODE
    if item.is_pinned and not item.was_stored:
        return _PINNED
    return _UNFINISHED if item.is_pending else None


def _is_above_ceiling(item: ItemFacts, limits: ItemLimits) -> bool:
    if limits.is_bound and item.item_type in WRITTEN_BY_MODEL:
        return False
    return limits.ceiling is not None and item.tokens > limits.ceiling


def _by_rule(
    rule: Rule, item: ItemFacts, limits: ItemLimits, shortfall: Reason | None
) -> tuple[Action, Reason]:
    if item.was_stored:
        return "offload", _STORED_BEFORE
    is_once = limits.is_bound and not rule.keep_recent
    if is_once and item.item_type in WRITTEN_BY_MODEL:
        return "keep", _MODEL_WROTE
    if item.is_error:
        return "keep", _TOOL_ERROR
    if shortfall is not None:
        return "keep", shortfall
    return _once(rule, item) if is_once else _in_time(rule, item)


def _once(rule: Rule, item: ItemFacts) -> tuple[Action, Reason]:
    """Judge a large item that may be offloaded before it is first sent, and never later."""
    if item.answers:
        return "keep", _SENT
    if rule.after_replies:
        return "keep", Reason(ReasonKind.SHOWN_FIRST, item.tokens)
    return "offload", Reason(ReasonKind.LARGE, item.tokens)


def _in_time(rule: Rule, item: ItemFacts) -> tuple[Action, Reason]:
    """Judge a large item that may be offloaded at any time."""
    if item.answers < rule.after_replies:
        return "wait", Reason(ReasonKind.LATER, count=rule.after_replies - item.answers)
    if item.newer < rule.keep_recent:
        return "wait", Reason(ReasonKind.RECENT, count=rule.keep_recent)
    return "offload", Reason(ReasonKind.LARGE, item.tokens)


def _is_by_cost(rule: Rule, item: ItemFacts, limits: ItemLimits, *, is_small: bool) -> bool:
    """Return whether the expected cost decides about an item that is neither kept nor too large."""
    if item.was_stored or item.is_report or rule.keep_recent:
        return False
    if limits.is_bound:
        if item.answers or item.item_type in WRITTEN_BY_MODEL:
            return False
        if rule.after_replies:
            # A result that the rule would show in full; a user's text may be the task.
            is_large = (
                not is_small if limits.cost_plan == "none" else item.chars >= KEPT_CHARS * rule.after_replies
            )
            return item.item_type == "tool_result" and is_large
        if not is_small:
            return False
    if limits.ceiling is not None and (rule.min_tokens or 0) > limits.ceiling:
        # Only the ceiling decides about items of such a rule.
        return False
    # A small user message may be the task.
    is_small_result = is_small and item.item_type in ("tool_result", "tool_call")
    return limits.cost_plan == "all" or (limits.cost_plan == "small" and is_small_result)


def _names_chars(item: ItemFacts, limits: ItemLimits) -> int:
    if not limits.is_bound or limits.cost_plan == "none" or item.item_type != "tool_result":
        return 0
    return min(item.chars // NAMES_SHARE, NAMES_CHARS)


def _preview_chars(rule: Rule, item: ItemFacts, limits: ItemLimits, *, is_small: bool) -> int:
    if limits.cost_plan == "none":
        return rule.preview_chars
    if limits.is_bound:
        times = FILE_PREVIEWS if shows_file(item.tool_name) else 1
        return min(times * rule.preview_chars, item.chars // NAMES_SHARE)
    if rule.after_replies or is_small:
        share = WRITTEN_SHARE if item.item_type in WRITTEN_BY_MODEL else 1
        return min(rule.preview_chars, SEEN_PREVIEW_CHARS, item.chars // share)
    return min(rule.preview_chars, round(item.chars * PREVIEW_SHARE))
