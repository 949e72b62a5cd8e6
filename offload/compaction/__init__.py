"""Compaction: removes messages from a conversation that nears its context window, and stores them."""

from offload.compaction._archive import MessageArchive
from offload.compaction._selective import SelectiveCompaction, SelectiveResult
from offload.compaction._strategy import CompactionResult, CompactionStrategy
from offload.compaction._summary import Summarizer
from offload.compaction._windows import threshold_for
from offload.compaction.rounds import CompactResult, Proposal, RoundCompactor, RoundConfig, RoundStrategy
from offload.compaction.rules import RuleStrategy, TypeRule
from offload.placeholder import Notice

__all__ = [
    "CompactResult",
    "CompactionResult",
    "CompactionStrategy",
    "MessageArchive",
    "Notice",
    "Proposal",
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
