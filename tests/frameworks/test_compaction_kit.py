"""Compaction by the conformance kit: statements planted in a session, and which of them survive."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("compaction_kit", reason="in the environment of the group integration-compaction-kit")

from compaction_kit import (
    CompactedContext,
    build_generated_session,
    build_random_session,
    build_seeded_session,
    build_semantic_session,
    seeded_canaries,
)
from compaction_kit.probes import BehaviorProbe
from compaction_kit.testing import check_compactor

from offload import Offloader
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction, TypeRule
from offload.messages.context import ContextIR

SHARE = 0.6
SAYS_NOTHING = "<summary>The user and the assistant talked.</summary>"


def messages_of(turns):
    return [{"role": turn.role, "content": turn.text} for turn in turns]


def by_rounds(off, messages, summarizer):
    config = RoundConfig(require_confirmation=False)
    return RoundCompactor(off, summarizer, config).compact(messages).new_messages


def by_type(off, messages, summarizer):
    context = ContextIR()
    for message in messages:
        context.add_message(message)
    # With a summarizer nothing is kept, and without one the user's messages go first.
    kept = ("assistant_message", "user_message") if summarizer else ("assistant_message",)
    rules = dict.fromkeys(kept, TypeRule())
    SelectiveCompaction(off, summarizer, threshold_tokens=16_000, rules=rules).compact(context)
    return context.lower()


class Compactor:
    """Our compaction behind the kit's protocol: a round compacts what the one before left, and more talk."""

    def __init__(self, compact, summarizer):
        self.name = "offload"
        self.off = Offloader("memory://", session="s")
        self._compact = compact
        self._summarizer = summarizer
        self._messages = []

    def compact(self, turns, round_num=1):
        more = [*(messages_of(turns) if round_num == 1 else ()), *talk(round_num)]
        self._messages = self._compact(self.off, [*self._messages, *more], self._summarizer)
        text = "\n".join(message["content"] for message in self._messages)
        return CompactedContext(text=text, compactor_name=self.name, round_num=round_num)


def talk(number):
    """Return messages that fill a window of 20,000 tokens, and say nothing."""
    turns = [("user", f"Please continue with part {number}."), ("assistant", "I did that part. " * 150)]
    return [{"role": role, "content": text} for _ in range(32) for role, text in turns]


def compacted(session, compact, summarizer):
    compactor = Compactor(compact, summarizer)
    text = compactor.compact(session.transcript()).text
    assert "[Compacted 1: " in text
    return compactor.off, text


def holds(text, canary):
    return BehaviorProbe().probe(canary, text).survived


def seeded():
    return build_seeded_session(), seeded_canaries()


SESSIONS = {"seeded": seeded}
for seed in range(3):
    for build in (build_random_session, build_generated_session, build_semantic_session):
        SESSIONS[f"{build.__name__} {seed}"] = partial(build, seed)
both_strategies = pytest.mark.parametrize("compact", [by_rounds, by_type])


@both_strategies
@pytest.mark.parametrize("summarizer", [None, lambda _: SAYS_NOTHING], ids=["ledger", "summary"])
@pytest.mark.parametrize("name", SESSIONS)
def test_most_statements_are_in_view_after_a_summary_that_says_nothing(name, summarizer, compact):
    session, canaries, *_ = SESSIONS[name]()

    _, text = compacted(session, compact, summarizer)

    survived = [canary for canary in canaries if holds(text, canary)]
    assert len(survived) >= SHARE * len(canaries)


@both_strategies
@pytest.mark.parametrize("name", SESSIONS)
def test_the_model_finds_every_statement_by_one_search(name, compact):
    session, canaries, *_ = SESSIONS[name]()

    off, _ = compacted(session, compact, lambda _: SAYS_NOTHING)

    for canary in canaries:
        arguments = {"pattern": canary.required_tokens[0], "ignore_case": True}
        answer = off.tools.call("context_grep", arguments)
        assert holds(answer, canary), answer


@both_strategies
def test_statements_survive_five_rounds(compact):
    report = check_compactor(Compactor(compact, lambda _: SAYS_NOTHING), rounds=5)

    for finding in report.findings:
        assert min(finding.curve) >= SHARE, finding
