"""What leaves not by itself but with others: the budget of a turn, the sweep of a conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offload.policy._facts import Decision
from offload.policy._rules import Sweep

# A placeholder's own words, and how many characters of a preview make a token.
_WORDS_TOKENS, _CHARS_PER_TOKEN = 60, 3


def over_budget(decisions: Sequence[Decision], budget: int) -> dict[int, Decision]:
    """Return which results of one turn must leave for the rest to take at most `budget` tokens together.

    The largest go first, of equals the earlier. Only tool results that are kept for their size alone count.

    Args:
        decisions: those on the items of the turn.
        budget: tokens.

    Returns:
        The new decisions, by their place in `decisions`.
    """
    small = [i for i, d in enumerate(decisions) if d.is_below and d.item.item_type == "tool_result"]
    return _largest(decisions, small, budget, "the turn's results take {} tokens together, over {}")


def over_ceiling(decisions: Sequence[Decision], ceiling: int) -> dict[int, Decision]:
    """Return which new texts of one turn must leave for the rest to take at most `ceiling` tokens together.

    The largest go first, of equals the earlier. What no ceiling bounds is not counted.

    Args:
        decisions: those on the items of the turn.
        ceiling: tokens; see `OffloadPolicy.max_view_tokens`.

    Returns:
        The new decisions, by their place in `decisions`.
    """
    view = [i for i, d in enumerate(decisions) if not d.is_exempt and d.action != "offload"]
    said = "the turn's texts take {} tokens together, above max_view_tokens ({})"
    return _largest(decisions, view, ceiling, said)


def excess(decisions: Sequence[Decision], ceiling: int) -> list[str]:
    """Return in words what is above `ceiling` and stays in view, of the items of one turn that do.

    Args:
        decisions: those on the items that stay.
        ceiling: tokens; see `OffloadPolicy.max_view_tokens`.
    """
    texts = [d for d in decisions if d.item.media_type is None and not d.item.is_pending]
    large = [
        f"messages[{d.item.message}]: {d.item.item_type} of {d.item.tokens} tokens stays in view, above "
        f"max_view_tokens ({ceiling}): {d.reason}"
        for d in texts
        if d.item.tokens > ceiling
    ]
    bounded = [d for d in texts if not d.is_exempt and d.item.tokens <= ceiling]
    total = sum(d.item.tokens for d in bounded)
    if total > ceiling:
        large.append(
            f"messages[{bounded[0].item.message}] and what follows: {len(bounded)} texts of {total} tokens "
            f"stay in view together, above max_view_tokens ({ceiling})"
        )
    return large


def swept(decisions: Sequence[Decision], tokens: int, sweep: Sweep, min_saving: int) -> dict[int, Decision]:
    """Return which items leave in a sweep of a conversation: the oldest first, none if it is not worth it.

    What the model has not answered yet stays.

    Args:
        decisions: those on the items that are still in view and could leave, oldest first.
        tokens: what the whole conversation takes now.
        sweep: when to sweep, and how far.
        min_saving: tokens that each item must free.

    Returns:
        The new decisions, by their place in `decisions`.
    """
    if tokens <= sweep.trigger:
        return {}
    leaving: dict[int, Decision] = {}
    freed = 0
    for i, decision in enumerate(decisions):
        if sweep.target_tokens is not None and tokens - freed <= sweep.target_tokens:
            break
        freeing = saving(decision)
        is_old = decision.item.answers > 0 and decision.item.newer >= sweep.keep_recent
        if is_old and freeing >= max(1, min_saving):
            leaving[i] = _leaves(decision, f"swept: {tokens} tokens in all, over {sweep.trigger}")
            freed += freeing
    return leaving if freed >= sweep.clear_at_least else {}


def saving(decision: Decision) -> int:
    """Return about how many tokens an item frees that leaves."""
    preview = min(decision.item.chars, decision.preview_chars) // _CHARS_PER_TOKEN
    return decision.item.tokens - preview - _WORDS_TOKENS


def _largest(
    decisions: Sequence[Decision], places: Sequence[int], most: int, said: str
) -> dict[int, Decision]:
    """Return the largest of the decisions at `places` as leaving, until the rest takes `most` tokens."""
    total = sum(decisions[i].item.tokens for i in places)
    reason = said.format(total, most)
    leaving: dict[int, Decision] = {}
    for i in sorted(places, key=lambda i: (-decisions[i].item.tokens, i)):
        if total <= most or saving(decisions[i]) <= 0:
            break
        leaving[i] = _leaves(decisions[i], reason)
        total -= decisions[i].item.tokens
    return leaving


def _leaves(decision: Decision, reason: str) -> Decision:
    return replace(decision, action="offload", reason=reason, is_below=False)
