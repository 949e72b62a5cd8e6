"""The table of message formats, and lookups that work for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from offload.errors import MessageError
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.anthropic import OWN_BLOCKS, AnthropicAdapter
from offload.messages.bedrock import BedrockAdapter
from offload.messages.calls import Calls
from offload.messages.gemini import GeminiAdapter
from offload.messages.gemini_interactions import GeminiInteractionsAdapter
from offload.messages.langchain import LangChainAdapter
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.messages.openai_responses import OpenAIResponsesAdapter

# A message belongs to the first format that claims it. The last two share fields with the others; the last
# also gets messages that no format claims.
FORMATS: tuple[MessageAdapter, ...] = (
    LangChainAdapter(),
    GeminiInteractionsAdapter(),
    OpenAIResponsesAdapter(),
    GeminiAdapter(),
    BedrockAdapter(),
    OpenAIChatAdapter(),
    AnthropicAdapter(),
)


# Blocks that several formats have, or the last one alone.
_COMMON_BLOCKS = ("text", *OWN_BLOCKS)


def adapter_for(message: Any) -> MessageAdapter:
    """Return the adapter for the format of `message`."""
    if _is_common(message):
        return FORMATS[-1]
    return next((a for a in FORMATS if a.claims(message)), FORMATS[-1])


def _is_common(message: Any) -> bool:
    """Return whether a message has a role, a content and no sign of another format, as most have."""
    if type(message) is not dict or len(message) != len(("role", "content")):
        return False
    content = message.get("content")
    if message.get("role") not in ("user", "assistant"):
        return False
    for block in content if type(content) is list else ():
        if type(block) is not dict or block.get("type") not in _COMMON_BLOCKS:
            return False
    return isinstance(content, str | list)


def role_of(message: Any, where: str = "message") -> str:
    """Return the role of `message`, see `MessageAdapter.role`."""
    return adapter_for(message).role(message, where)


def role_or_none(message: Any) -> str | None:
    """Return the role of `message`, None if it has none."""
    try:
        return role_of(message)
    except MessageError:
        return None


def scan_of(message: Any, calls: Calls | None = None) -> Scan:
    """Return the parts of `message` after messages with the tool calls `calls`.

    A malformed one is counted, and has no items. Raises the exception of a block that could not be read.
    """
    try:
        scan = adapter_for(message).scan(message, "message", calls or Calls())
    except MessageError:
        return Scan.unread(message)
    for _, error in scan.failed:
        raise error
    return scan


def scan_next(message: Any, calls: Calls) -> Scan:
    """Return the parts of `message`, and note its calls and results in `calls`; raises as `scan_of`."""
    scan = scan_of(message, calls)
    calls.add(scan.calls, scan.results, is_reply=scan.is_reply)
    return scan


def scans_of(messages: Iterable[Any]) -> list[Scan]:
    """Return the parts of messages in a row; results know the calls before them. Raises as `scan_of`."""
    calls = Calls()
    return [scan_next(message, calls) for message in messages]


def is_result(message: Any) -> bool:
    """Return whether `message` holds a tool result of the host; the assistant's are those of the API."""
    return role_or_none(message) != "assistant" and bool(adapter_for(message).results(message))


def answered_calls(message: Any) -> list[str]:
    """Return the ids of earlier tool calls whose results `message` holds; formats without ids have none."""
    return [call for call in adapter_for(message).results(message) if isinstance(call, str)]
