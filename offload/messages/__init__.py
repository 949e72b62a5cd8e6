"""Provider messages: one adapter per format finds the items of a message, replaces and restores them.

| format | tool_result | tool_call | counted, never offloaded |
|---|---|---|---|
| Anthropic Messages | `tool_result`: a string, text blocks | input | thinking |
| OpenAI chat | role tool, function: a string, text parts | arguments, custom input | reasoning |
| OpenAI Responses | outputs of calls: strings, input_text, streams | arguments, custom input | reasoning |
| LangChain | tool, function: a string, strings, text blocks | args | thinking, reasoning |
| Bedrock Converse | `toolResult`: text, json | input | reasoning, citations |
| Gemini | `functionResponse`: response | args | thoughts, executed code |

In all formats, user messages, assistant messages and system prompts are items too. So are images and
documents in tool results and user messages, if the message holds their bytes and a text may replace them:

| format | in results | in user messages |
|---|---|---|
| Anthropic Messages | image, document in base64 | image, document in base64 |
| OpenAI chat | image_url, file with a data URL | image_url, file with a data URL |
| OpenAI Responses | input_image, input_file with a data URL | input_image, input_file with a data URL |
| LangChain | image, file, and those of the providers | image, file, and those of the providers |
| Bedrock Converse | image, document in bytes | image, document in bytes |
| Gemini | - | inlineData |

Media with a URL or a file id, sound, video, artifacts and metadata are kept.

Messages may be dicts or SDK objects. Parts that are unknown, or could not be restored exactly, are kept. The
API accepts each placeholder: it replaces an object by an object. A list may mix formats.
"""

from offload.messages._base import SYSTEM_ROLES, Block, Item, MessageAdapter, Scan
from offload.messages._formats import (
    FORMATS,
    adapter_for,
    answered_calls,
    is_result,
    role_of,
    role_or_none,
    scan_of,
)
from offload.messages._media import MediaFacts, media_facts, media_ref
from offload.messages._stored import as_data, from_json, map_texts, to_json

__all__ = [
    "FORMATS",
    "SYSTEM_ROLES",
    "Block",
    "Item",
    "MediaFacts",
    "MessageAdapter",
    "Scan",
    "adapter_for",
    "answered_calls",
    "as_data",
    "from_json",
    "is_result",
    "map_texts",
    "media_facts",
    "media_ref",
    "role_of",
    "role_or_none",
    "scan_of",
    "to_json",
]
