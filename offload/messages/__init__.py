"""Provider messages ⇄ items. One adapter per format; a message belongs to the first that claims it.

| format | tool_result | tool_call | counted, never moved |
|---|---|---|---|
| Anthropic Messages | `tool_result`: a string, text blocks | input | thinking |
| OpenAI chat | role tool, function: a string, text parts | arguments, custom input | reasoning |
| OpenAI Responses | outputs of calls: strings, input_text, streams | arguments, custom input | reasoning |
| LangChain | tool, function: a string, strings, text blocks | args | thinking, reasoning |
| Bedrock Converse | `toolResult`: text, json | input | reasoning, citations |
| Gemini | `functionResponse`: response | args | thoughts, executed code |

In all of them the texts of user, assistant and system are items too, and so are images and documents in
results and in what the user says, where their bytes stand in the message and a text may take their place:

| format | in results | of the user |
|---|---|---|
| Anthropic Messages | image, document of base64 | the same |
| OpenAI chat | image_url, file of a data URL | the same |
| OpenAI Responses | input_image, input_file of a data URL | the same |
| LangChain | image, file, and those of the providers | the same |
| Bedrock Converse | image, document of bytes | the same |
| Gemini | - | inlineData |

Those that name a URL or a file, and sound, video, artifacts and metadata, stay where they are.

Items are found in dicts and in the SDKs' own objects; whatever is not understood stays untouched, and so
does what could not be given back deep-equal. A placeholder stands in a form that the API accepts: for an
object, in an object. A list may mix formats: each message is looked at for itself.
"""

from __future__ import annotations

from typing import Any

from offload.messages._base import Block, Item, MessageAdapter, Scan
from offload.messages._media import MediaFacts, media_facts, stand_in_ref
from offload.messages.anthropic import AnthropicAdapter
from offload.messages.bedrock import BedrockAdapter
from offload.messages.gemini import GeminiAdapter
from offload.messages.langchain import LangChainAdapter
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.messages.openai_responses import OpenAIResponsesAdapter

# The last two share fields with the first ones, and take what is common to all.
_ADAPTERS: tuple[MessageAdapter, ...] = (
    LangChainAdapter(),
    OpenAIResponsesAdapter(),
    GeminiAdapter(),
    BedrockAdapter(),
    OpenAIChatAdapter(),
    AnthropicAdapter(),
)

__all__ = [
    "Block",
    "Item",
    "MediaFacts",
    "MessageAdapter",
    "Scan",
    "adapter_for",
    "media_facts",
    "role_of",
    "stand_in_ref",
]


def adapter_for(message: Any) -> MessageAdapter:
    """Return the adapter of the format that `message` is in; plain texts are common to all of them."""
    return next((a for a in _ADAPTERS if a.claims(message)), _ADAPTERS[-1])


def role_of(message: Any, where: str = "message") -> str:
    """Return the role of `message`: "assistant" for what a model made, else the word of its format.

    Raises `MessageError` if it has none.
    """
    return adapter_for(message).role(message, where)
