"""Plans of a compaction by rounds: which messages it removes, whole rounds first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from offload.agent.compaction._strategy import Plan, View
from offload.engine.placeholder.notice import notice_number
from offload.messages.base import SYSTEM_ROLES
from offload.messages.context.pairs import ranges_between, split_groups, split_rounds, waiting_from
from offload.messages.formats import is_result, role_or_none, scan_of

# Indices of messages that are removed together.
Unit = Sequence[int]


@dataclass(frozen=True)
class RoundPlanner:
    """Chooses the messages to remove from a full context.

    Attributes:
        keep: how many rounds are kept at most.
        keep_parts: how many parts are kept at most if a round is cut.
        summary: returns a summary of messages; "" for none.
    """

    view: View
    keep: int
    keep_parts: int
    summary: Callable[[Sequence[Any]], str]

    def plan(self) -> Plan:
        """Return the mildest plan after which the context is not full, or else the one that removes most."""
        for units, keep in (self.view.rounds, self.keep), (self.view.groups, self.keep_parts):
            draft = self._mildest(units, min(keep, len(units) - 1))
            if draft is not None and draft.tokens < self.view.target:
                return draft
        return self.draft(self.view.groups[:-1])

    def draft(self, units: Sequence[Unit]) -> Plan:
        removed = joined(units)
        return self.view.plan(removed, self.summary([self.view.messages[i] for i in removed]))

    def _mildest(self, units: Sequence[Unit], keep: int) -> Plan | None:
        """Return the first plan that is enough, or the last one tried, None if no one can be enough.

        It keeps at most `keep` of the latest `units`.
        """
        draft, plain = None, self.view.plan(units[0])
        notice = plain.tokens - self.view.tokens_without(plain.removed)
        while (keep := min(keep, self.view.fitting(units, self.view.target - notice))) > 0:
            draft = self.draft(units[:-keep])
            if draft.tokens < self.view.target:
                break
            notice = draft.tokens - self.view.tokens_without(draft.removed)
            keep -= 1
        return draft


def best_plan(planner: RoundPlanner) -> Plan:
    """Return the plan of a planner; without a summary, if the context is only smaller without one."""
    plan = planner.plan()
    if plan.tokens < planner.view.target or not plan.notice.summary:
        return plan
    plain = replace(planner, summary=lambda _: "").plan()
    return plain if plain.tokens < planner.view.target or plan.tokens >= planner.view.total else plan


def rounds_and_parts(messages: Sequence[Any]) -> tuple[Sequence[Unit], Sequence[Unit]]:
    """Return the rounds of a conversation, and the parts into which a round may be cut.

    System messages belong to none. A conversation of a single round is taken apart at each message that
    directly follows one of the same role.
    """
    others = [i for i, message in enumerate(messages) if role_or_none(message) not in SYSTEM_ROLES]
    conversation = [messages[i] for i in others]
    parts, rounds = _parts(conversation), split_rounds(conversation)
    if len(rounds) == 1:
        rounds = _runs(conversation, parts)
    return (
        [others[one.start : one.stop] for one in rounds],
        [others[one.start : one.stop] for one in parts],
    )


def joined(units: Sequence[Unit]) -> list[int]:
    """Return the indices of all `units`."""
    return list(chain.from_iterable(units))


def _parts(messages: Sequence[Any]) -> list[range]:
    """Return the parts into which a conversation may be cut, in order, as ranges of indices.

    No part ends with a notice: it is only removed together with messages after it. Open calls are in the last
    part, since their results are still to come.
    """
    open_from = waiting_from(messages)
    groups = split_groups(messages)
    starts = [
        one.start for one in groups if one.start <= open_from and not _is_notice(messages, one.start - 1)
    ]
    return ranges_between(starts, len(messages))


def _runs(messages: Sequence[Any], parts: Sequence[range]) -> list[range]:
    """Return `parts`, each joined with those after it that do not continue a run of one role."""
    starts = [
        one.start for one in parts if one.start and _is_run(messages[one.start - 1], messages[one.start])
    ]
    return ranges_between(starts, len(messages))


def _is_run(message: Any, following: Any) -> bool:
    """Return whether two messages have one role, and are not calls or results."""
    return role_or_none(message) == role_or_none(following) and not any(
        is_result(one) or scan_of(one).calls for one in (message, following)
    )


def _is_notice(messages: Sequence[Any], index: int) -> bool:
    return index >= 0 and any(map(notice_number, scan_of(messages[index]).all_texts[:1]))
