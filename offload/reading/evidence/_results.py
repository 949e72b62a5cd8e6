"""The result of a check: the exact values in a text, and where the session has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

ValueKind = Literal["number", "date", "path", "url", "identifier", "quote"]
ValueState = Literal["in_view", "read_back", "shown", "hidden", "called", "not_found", "unknown"]


@dataclass(frozen=True, slots=True)
class Value:
    """An exact value in a text, and where the session has it.

    Attributes:
        text: the value as written, at most 200 characters.
        start: offset of its first character in the text, from 0.
        kind: "number", "date", "path", "url", "identifier" or "quote".
        state: "in_view": the last request shows it. "read_back": that request shows it in answers of
            retrieval tools alone. "shown": only earlier requests showed it. "hidden": a record has it that
            was never shown so far. "called": only the arguments of the model's own tool calls have it.
            "not_found": nothing in the session has it. "unknown": the session has no journal, or not all
            of it could be searched.
        ref: the id of the record that has it; None if none has, or none was needed.
        line: the line in the record, or in the message if there is no record, from 1.
        request: the number of the last request that showed it; None if none did.
        message: the index of the message among those of that request.
    """

    text: str
    start: int
    kind: ValueKind
    state: ValueState
    ref: str | None = None
    line: int | None = None
    request: int | None = None
    message: int | None = None

    @property
    def end(self) -> int:
        """Offset after its last character."""
        return self.start + len(self.text)

    @property
    def place(self) -> str:
        """Its record and line, as `kqzmwpxhva:12`, or else its message, or else its state in words."""
        if self.ref is not None:
            return f"{self.ref}:{self.line}"
        if self.message is not None:
            return f"message {self.message}:{self.line}"
        return self.state.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The exact values in a text, and where a session has them.

    Attributes:
        session: the session that was searched.
        text: the text after the session's `redact`, which offsets refer to.
        values: the values, in order; a repeated one each time.
        request: the number of the last request, which is the view; None without a journal.
        records: how many records were searched.
        chars: how many characters of messages and records were searched.
        checked_chars: how many characters of the text were checked; fewer than all if it is longer than
            1,000,000, has more than 500 different values, or the search takes longer than 8 seconds.
        unsearched: why a record, by its id, or the "journal" was not searched completely.
    """

    session: str
    text: str
    values: list[Value]
    request: int | None
    records: int
    chars: int
    checked_chars: int
    unsearched: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_found(self) -> list[Value]:
        """The values that nothing in the session has."""
        return [value for value in self.values if value.state == "not_found"]

    @property
    def why_unknown(self) -> str:
        """Why values have the state "unknown"; empty if none has."""
        if not any(value.state == "unknown" for value in self.values):
            return ""
        if self.request is None and "journal" not in self.unsearched:
            return "the session has no journal of what the model saw; Offloader(journal=True) keeps one"
        return "not all of the session could be searched"

    def pieces(self) -> Iterator[tuple[str, Value | None]]:
        """Yield the text in pieces, each with its value, or None if it has none."""
        at = 0
        for value in self.values:
            yield self.text[at : value.start], None
            yield value.text, value
            at = value.end
        yield self.text[at:], None

    def marked(self) -> str:
        """Return the text with the place of each value behind it; `>>` marks what is not found."""
        return "".join(marked_piece(text, value) for text, value in self.pieces())


def marked_piece(text: str, value: Value | None) -> str:
    """Return a piece of a text with the place of its value."""
    if value is None:
        return text
    return f">>{text}<< [not found]" if value.state == "not_found" else f"{text} [{value.place}]"
