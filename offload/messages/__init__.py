"""Provider messages ⇄ items. One adapter per format; a message belongs to the first that claims it.

| format | offloadable | counted, never moved | untouched |
|---|---|---|---|
| Anthropic | text, tool_result (string, text blocks) | tool_use input, thinking | images, documents |
| OpenAI chat | text, role tool or function (string, text parts) | arguments, reasoning | images, audio |

Items are found in dicts and in the SDKs' own objects; whatever is not understood stays untouched.
"""

from __future__ import annotations

from typing import Any

from offload.messages._base import Item, MessageAdapter, Scan, role_of
from offload.messages.anthropic import AnthropicAdapter
from offload.messages.openai_chat import OpenAIChatAdapter

_ADAPTERS: tuple[MessageAdapter, ...] = (OpenAIChatAdapter(), AnthropicAdapter())

__all__ = ["Item", "MessageAdapter", "Scan", "adapter_for", "role_of"]


def adapter_for(message: Any) -> MessageAdapter:
    """Return the adapter of the format that `message` is in; plain texts are common to all of them."""
    return next((a for a in _ADAPTERS if a.claims(message)), _ADAPTERS[-1])
