"""Compaction: a conversation that nears its context window is made shorter, and nothing of it is lost."""

from offload.compaction._config import Refusal, RoundConfig
from offload.compaction._rounds import CompactResult, Confirm, Proposal, RoundCompactor
from offload.compaction._summary import Summarizer

__all__ = ["CompactResult", "Confirm", "Proposal", "Refusal", "RoundCompactor", "RoundConfig", "Summarizer"]
