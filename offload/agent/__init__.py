"""The agent loop: keeps a conversation within the context window of its model."""

from offload.agent._config import AgentConfig
from offload.agent._manager import ContextManager, Request
from offload.agent._refusals import is_bound_refusal, is_too_long
from offload.agent._summarizers import AnthropicSummarizer, OpenAISummarizer

__all__ = [
    "AgentConfig",
    "AnthropicSummarizer",
    "ContextManager",
    "OpenAISummarizer",
    "Request",
    "is_bound_refusal",
    "is_too_long",
]
