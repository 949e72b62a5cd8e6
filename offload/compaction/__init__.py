"""Compaction: a conversation that nears its context window is made shorter, and nothing of it is lost."""

from offload.compaction._config import Refusal, RoundConfig
from offload.compaction._rounds import CompactResult, Confirm, Proposal, RoundCompactor
from offload.compaction._rules import DEFAULT_RULES, RuleStrategy, TypeRule
from offload.compaction._selective import SelectiveCompaction, SelectiveResult
from offload.compaction._summary import Summarizer
from offload.compaction._windows import threshold_for

__all__ = [
    "DEFAULT_RULES",
    "CompactResult",
    "Confirm",
    "Proposal",
    "Refusal",
    "RoundCompactor",
    "RoundConfig",
    "RuleStrategy",
    "SelectiveCompaction",
    "SelectiveResult",
    "Summarizer",
    "TypeRule",
    "threshold_for",
]
