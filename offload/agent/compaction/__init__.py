"""Compaction: removes messages from a conversation that nears its context window, and stores them."""

from offload.agent.compaction._archive import MessageArchive
from offload.agent.compaction._selective import SelectiveCompaction, SelectiveResult
from offload.agent.compaction._strategy import CompactionResult, CompactionStrategy
from offload.agent.compaction._summary import Summarizer
from offload.agent.compaction._windows import threshold_for
from offload.agent.compaction.rounds import (
    CompactResult,
    Proposal,
    RoundCompactor,
    RoundConfig,
    RoundStrategy,
)
from offload.agent.compaction.rules import RuleStrategy, TypeRule
from offload.engine.placeholder import Notice

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
