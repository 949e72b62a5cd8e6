"""Tokens of whole messages, each counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.context._pairs import scan_of
from offload.messages._access import json_text
from offload.tokens import TokenCounter, estimate_tokens, in_whole_numbers

# What the frame of a message takes, by the rule of thumb of several providers.
MESSAGE_TOKENS = 4


class MessageCounter:
    """Counts the tokens of messages, and remembers those of the list that it counted last.

    A message that is changed in place after it was counted keeps its old count; give a changed copy.

    Args:
        token_counter: counts tokens of a text; the default is the offline estimate.
    """

    def __init__(self, token_counter: TokenCounter | None = None) -> None:
        self._count = in_whole_numbers(estimate_tokens if token_counter is None else token_counter)
        # The message is held too: the id of one that is gone may be given to another.
        self._known: dict[int, tuple[Any, int]] = {}
        self._summed: list[Any] = []
        self._sum = 0

    def text(self, text: str) -> int:
        """Return the tokens of a text."""
        return self._count(text) if text else 0

    def data(self, value: Any) -> int:
        """Return the tokens of data as the model sees it, tool definitions above all."""
        return self.text(json_text(value)) if value else 0

    def message(self, message: Any) -> int:
        """Return the tokens of one message: 4 for its frame, and those of its texts, images and documents.

        Of images and documents whose bytes stand in the message it is an estimate; others count 0.
        """
        scan = scan_of(message)
        shown = [item.media.tokens if item.media else self.text(item.text) for item in scan.found]
        return MESSAGE_TOKENS + sum(map(self.text, scan.texts)) + sum(shown)

    def messages(self, messages: Sequence[Any]) -> list[int]:
        """Return the tokens of each message; only those are looked at that the last list did not hold."""
        known, self._known = self._known, {}
        for message in messages:
            found = known.get(id(message))
            self._known[id(message)] = (message, self.message(message)) if found is None else found
        return [self._known[id(message)][1] for message in messages]

    def total(self, messages: Sequence[Any]) -> int:
        """Return the tokens of all messages; of a list that grew since, only what is new is counted."""
        given = messages if isinstance(messages, list) else list(messages)
        summed, length = self._summed, len(self._summed)
        summed.extend(given[length:])
        if are_equal(summed, given):
            new = summed[length:]
            counts = [self.message(message) for message in new]
            self._known |= {id(m): (m, count) for m, count in zip(new, counts, strict=True)}
            self._sum += sum(counts)
        else:
            self._summed, self._sum = list(given), sum(self.messages(given))
        return self._sum


def are_equal(some: list[Any], others: list[Any]) -> bool:
    """Tell whether two lists hold the same messages; those that cannot be compared are not the same."""
    try:
        return some == others
    except Exception:  # noqa: BLE001 # an object that stands for a message may raise anything
        return False
