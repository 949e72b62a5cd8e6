"""Decisions on groups of items: the token limits of a turn, and the sweep of a conversation. All pure."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from offload.engine.policy.facts import Decision
from offload.engine.policy.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from offload.engine.policy._rules import Sweep

# Estimated tokens of a placeholder without its preview, and characters per token of a preview.
_PLACEHOLDER_TOKENS, _CHARS_PER_TOKEN = 60, 3


def over_ceiling(
    decisions: Sequence[Decision], ceiling: int, staying: Container[int] = ()
) -> dict[int, Decision]:
    """Choose the new texts of one turn to offload so that the rest take at most `ceiling` tokens.

    Those at the indices `staying` count too, although they cannot be offloaded, except where one alone is
    above the ceiling. Exempt items do not count. The largest are offloaded first, and the earlier of two
    equal ones. Returns the changed decisions, by their index in `decisions`.
    """
    view = [
        i
        for i, d in enumerate(decisions)
        if (d.item.tokens <= ceiling if i in staying else not d.is_exempt and d.action != "offload")
    ]
    return _largest(decisions, view, ceiling, staying)


def excess(decisions: Sequence[Decision], ceiling: int) -> list[str]:
    """Return a message for each item of one turn that is kept above `ceiling` tokens, and for their total."""
    texts = [d for d in decisions if d.item.media_type is None and not d.item.is_pending]
    messages = [
        f"messages[{d.item.message}]: {d.item.item_type} of {d.item.tokens} tokens is kept above "
        f"max_view_tokens ({ceiling}): {d.reason}"
        for d in texts
        if d.item.tokens > ceiling
    ]
    bounded = [d for d in texts if not d.is_exempt and d.item.tokens <= ceiling]
    total = sum(d.item.tokens for d in bounded)
    if total > ceiling:
        messages.append(
            f"messages[{bounded[0].item.message}] and later: {len(bounded)} texts with {total} tokens in "
            f"total are kept above max_view_tokens ({ceiling})"
        )
    return messages


def swept(decisions: Sequence[Decision], tokens: int, sweep: Sweep, min_saving: int) -> dict[int, Decision]:
    """Choose the items to offload in a sweep: the first of `decisions`, none if they would free too little.

    Items that the model has not replied to yet are kept, and those that free fewer than `min_saving` of the
    conversation's `tokens`. Returns the changed decisions, by their index in `decisions`.
    """
    reason = Reason(ReasonKind.SWEPT, tokens, sweep.trigger)
    chosen: dict[int, Decision] = {}
    freed = 0
    for i, decision in enumerate(decisions):
        if sweep.target_tokens is not None and tokens - freed <= sweep.target_tokens:
            break
        freeing = saving(decision)
        is_old = decision.item.answers > 0 and decision.item.newer >= sweep.keep_recent
        if is_old and freeing >= max(1, min_saving):
            chosen[i] = _offloaded(decision, reason)
            freed += freeing
    return chosen if freed >= sweep.clear_at_least else {}


def saving(decision: Decision) -> int:
    """Estimate the tokens that offloading an item frees."""
    shown = min(decision.item.chars, decision.preview_chars) + decision.names_chars
    preview = shown // _CHARS_PER_TOKEN
    return decision.item.tokens - preview - _PLACEHOLDER_TOKENS


def _largest(
    decisions: Sequence[Decision],
    indices: Sequence[int],
    limit: int,
    staying: Container[int],
) -> dict[int, Decision]:
    """Offload the largest of the items at `indices` but `staying`, until the rest take `limit` tokens."""
    total = sum(decisions[i].item.tokens for i in indices)
    reason = Reason(ReasonKind.TURN_TOO_LARGE, total, limit)
    chosen: dict[int, Decision] = {}
    for i in sorted(indices, key=lambda i: (-decisions[i].item.tokens, i)):
        if total <= limit:
            break
        if i in staying or saving(decisions[i]) <= 0:
            continue
        chosen[i] = _offloaded(decisions[i], reason)
        total -= decisions[i].item.tokens
    return chosen


def _offloaded(decision: Decision, reason: Reason) -> Decision:
    return replace(decision, action="offload", reason=reason)
