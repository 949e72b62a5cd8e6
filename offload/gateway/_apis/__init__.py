"""Calls of tools in each API of a model: one file per API, behind the protocol in `base.py`."""

from offload.gateway._apis.anthropic import AnthropicCalls
from offload.gateway._apis.base import ApiCalls
from offload.gateway._apis.chat import ChatCalls
from offload.gateway._apis.gemini import GeminiCalls
from offload.gateway._apis.responses import ResponsesCalls

# By the name of an API in `offload.gateway._incoming`; in others the gateway has no tools.
CALLS_OF: dict[str, ApiCalls] = {
    "Anthropic Messages": AnthropicCalls(),
    "OpenAI chat": ChatCalls(),
    "OpenAI Responses": ResponsesCalls(),
    "Gemini": GeminiCalls(),
}
