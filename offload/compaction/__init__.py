"""Compaction: removes messages from a conversation that nears its context window, and loses none of them."""

from offload.compaction._archive import MessageArchive
from offload.compaction._rounds import (
    CompactResult,
    Confirm,
    Proposal,
    Refusal,
    RoundCompactor,
    RoundConfig,
    RoundStrategy,
)
from offload.compaction._rules import DEFAULT_RULES, RuleStrategy, TypeRule
from offload.compaction._selective import SelectiveCompaction, SelectiveResult
from offload.compaction._strategy import CompactionResult, CompactionStrategy
from offload.compaction._summary import Summarizer
from offload.compaction._windows import threshold_for
from offload.placeholder import Notice

__all__ = [
    "DEFAULT_RULES",
    "CompactResult",
    "CompactionResult",
    "CompactionStrategy",
    "Confirm",
    "MessageArchive",
    "Notice",
    "Proposal",
    "Refusal",
    "RoundCompactor",
    "RoundConfig",
    "RoundStrategy",
    "RuleStrategy",
    "SelectiveCompaction",
    "SelectiveResult",
    "Summarizer",
    "TypeRule",
    "threshold_for",
]
