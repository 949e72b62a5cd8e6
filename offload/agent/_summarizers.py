"""Summarizers that ask a model through the caller's client, with its retries and deadline.

No SDK is imported here. Errors pass through: compaction keeps the conversation, and reports the error.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from operator import attrgetter
from typing import Any, ClassVar

from offload.errors import ConfigError
from offload.messages.access import get


class _ClientSummarizer(ABC):
    """Asks a model, a small one is enough, through a client of its SDK, sync or async.

    The answer has at most `max_tokens`. Raises `ConfigError` if the client cannot send messages.
    """

    # The SDK's method that sends messages, and its argument for the maximum length of the answer.
    _endpoint: ClassVar[str]
    _limit: ClassVar[str]

    def __init__(self, client: Any, model: str, *, max_tokens: int = 1024) -> None:
        self._model = model
        self._max_tokens = max_tokens
        try:
            self._create = attrgetter(self._endpoint)(client)
        except AttributeError as error:
            raise ConfigError(f"{type(self).__name__} needs a client of its SDK: {error}") from None

    def __call__(self, messages: list[Any], /) -> str | Awaitable[str]:
        """Return the text of the model's answer to `messages`, or with an async client an awaitable of it."""
        reply = self._create(model=self._model, messages=messages, **{self._limit: self._max_tokens})
        return self._awaited(reply) if inspect.isawaitable(reply) else self._text(reply)

    async def _awaited(self, reply: Awaitable[Any]) -> str:
        return self._text(await reply)

    @abstractmethod
    def _text(self, reply: Any) -> str: ...


class AnthropicSummarizer(_ClientSummarizer):
    """Asks `model` through `client`, an `anthropic.Anthropic` or `anthropic.AsyncAnthropic`."""

    _endpoint = "messages.create"
    _limit = "max_tokens"

    def _text(self, reply: Any) -> str:
        return "".join(get(block, "text") or "" for block in reply.content)


class OpenAISummarizer(_ClientSummarizer):
    """Asks `model` by chat completions, through `client`, an `openai.OpenAI` or `openai.AsyncOpenAI`."""

    _endpoint = "chat.completions.create"
    _limit = "max_completion_tokens"

    def _text(self, reply: Any) -> str:
        return (reply.choices[0].message.content or "") if reply.choices else ""
