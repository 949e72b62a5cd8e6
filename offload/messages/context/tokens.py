"""Token counts of whole messages, each counted once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from offload.base.tokens import TokenCounter, estimate_tokens, in_whole_numbers
from offload.errors import ConfigError
from offload.messages.access import begins_with, json_text
from offload.messages.formats import scan_of

# The tokens of a message without its parts, by the rule of thumb of several providers.
MESSAGE_TOKENS = 4


class MessageCounter:
    """Counts the tokens of messages, and keeps the counts of the list that it counted last.

    A message that is changed in place after it was counted keeps its old count: pass a changed copy. The
    default token counter is the offline estimate.
    """

    def __init__(self, token_counter: TokenCounter | None = None) -> None:
        self._count = in_whole_numbers(estimate_tokens if token_counter is None else token_counter)
        self._messages: list[Any] = []
        self._counts: list[int] = []
        self._sum = 0

    def text(self, text: str) -> int:
        """Return the tokens of a text."""
        return self._count(text) if text else 0

    def data(self, value: Any) -> int:
        """Return the tokens of data as JSON, such as tool definitions."""
        return self.text(json_text(value)) if value else 0

    def fixed(self, system_prompt: str | Sequence[Any] | None, tools: Sequence[Any] | None) -> int:
        """Return the tokens of what is sent with messages: a system prompt, as text or blocks, and tools.

        None is nothing. Raises `ConfigError` for any other value.
        """
        for name, value in (("system_prompt", system_prompt), ("tools", tools)):
            if not isinstance(value, Iterable | None):
                raise ConfigError(f"{name} must be what is sent to the model, or None, got {value!r:.60}")
        blocks = [] if isinstance(system_prompt, str) else list(system_prompt or ())
        text = system_prompt if isinstance(system_prompt, str) else ""
        return self.text(text) + self.data(blocks) + self.data(list(tools or ()))

    def message(self, message: Any) -> int:
        """Return the tokens of one message: 4, and those of its texts, and of images that it holds."""
        return MESSAGE_TOKENS + scan_of(message).tokens(self.text)

    def total(self, messages: Sequence[Any]) -> int:
        """Return the tokens of all messages; if the list grew, only the new ones are counted."""
        current = messages if isinstance(messages, list) else list(messages)
        known, length = self._messages, len(self._messages)
        if not begins_with(current, known):
            by_id = dict(zip(map(id, known), self._counts, strict=True))
            self._counts = [by_id[id(m)] if id(m) in by_id else self.message(m) for m in current]
            self._sum = sum(self._counts)
            self._messages = current.copy()
            return self._sum
        new = current[length:]
        counts = [self.message(message) for message in new]
        self._counts += counts
        self._sum += sum(counts)
        # Equal new objects take their place: the next list has them.
        if known and known[-1] is not current[length - 1]:
            known[:] = current[:length]
        known.extend(new)
        return self._sum
