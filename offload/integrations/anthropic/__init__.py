"""Anthropic SDK: offloading for its tool runner, a memory backend, lossless server-side clearing."""

from __future__ import annotations

from offload.errors import MissingExtraError

try:
    from offload.integrations.anthropic._clearing import ClearedResults
    from offload.integrations.anthropic._memory import AsyncOffloadMemory, OffloadMemory
    from offload.integrations.anthropic._runner import aoffloaded, async_tools, offloaded, tools
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[anthropic]'") from error

__all__ = [
    "AsyncOffloadMemory",
    "ClearedResults",
    "OffloadMemory",
    "aoffloaded",
    "async_tools",
    "offloaded",
    "tools",
]
