"""Anthropic SDK: offloading for its tool runner, a memory backend, lossless server-side clearing."""

from offload.errors import needs_extra

with needs_extra("anthropic"):
    from offload.integrations.anthropic._clearing import ClearedResults
    from offload.integrations.anthropic._memory import AsyncOffloadMemory, OffloadMemory
    from offload.integrations.anthropic._runner import aoffloaded, async_tools, offloaded, tools

__all__ = [
    "AsyncOffloadMemory",
    "ClearedResults",
    "OffloadMemory",
    "aoffloaded",
    "async_tools",
    "offloaded",
    "tools",
]
