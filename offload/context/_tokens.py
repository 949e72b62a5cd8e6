"""Token counts of whole messages, each counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.messages import scan_of
from offload.messages._access import json_text
from offload.tokens import TokenCounter, estimate_tokens, in_whole_numbers

# The tokens of a message without its parts, by the rule of thumb of several providers.
MESSAGE_TOKENS = 4


class MessageCounter:
    """Counts the tokens of messages, and keeps the counts of the list that it counted last.

    A message that is changed in place after it was counted keeps its old count: pass a changed copy.

    Args:
        token_counter: counts tokens of a text; the default is the offline estimate.
    """

    def __init__(self, token_counter: TokenCounter | None = None) -> None:
        self._count = in_whole_numbers(estimate_tokens if token_counter is None else token_counter)
        # The message is kept too: its id could be reused once it is freed.
        self._known: dict[int, tuple[Any, int]] = {}
        self._summed: list[Any] = []
        self._sum = 0

    def text(self, text: str) -> int:
        """Return the tokens of a text."""
        return self._count(text) if text else 0

    def data(self, value: Any) -> int:
        """Return the tokens of data as JSON, such as tool definitions."""
        return self.text(json_text(value)) if value else 0

    def message(self, message: Any) -> int:
        """Return the tokens of one message: 4, and those of its texts, images and documents.

        Images and documents are estimated if the message holds their bytes; others count 0.
        """
        return MESSAGE_TOKENS + scan_of(message).tokens(self.text)

    def messages(self, messages: Sequence[Any]) -> list[int]:
        """Return the tokens of each message; only those that the last list did not hold are counted."""
        known, self._known = self._known, {}
        for message in messages:
            count = known.get(id(message))
            self._known[id(message)] = (message, self.message(message)) if count is None else count
        return [self._known[id(message)][1] for message in messages]

    def total(self, messages: Sequence[Any]) -> int:
        """Return the tokens of all messages; if the list grew, only the new ones are counted."""
        current = messages if isinstance(messages, list) else list(messages)
        summed, length = self._summed, len(self._summed)
        summed.extend(current[length:])
        if are_equal(summed, current):
            new = summed[length:]
            counts = [self.message(message) for message in new]
            self._known |= {id(m): (m, count) for m, count in zip(new, counts, strict=True)}
            self._sum += sum(counts)
        else:
            self._summed, self._sum = list(current), sum(self.messages(current))
        return self._sum


def are_equal(some: list[Any], others: list[Any]) -> bool:
    """Return whether two lists hold equal messages; False if they cannot be compared."""
    try:
        return some == others
    except Exception:  # noqa: BLE001 # a message may be an object that raises anything
        return False
