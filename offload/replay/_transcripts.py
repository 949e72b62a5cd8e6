"""Recorded conversations as lists of messages, with the usage that the provider reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from offload.engine.failures import malformed
from offload.errors import OffloadError, result_or_error
from offload.messages import Usage
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for
from offload.messages.usage import usage_of


class Answer(NamedTuple):
    """The provider's report on one request.

    Attributes:
        time: when the answer was logged, in seconds since 1970.
        usage: the input tokens of the request.
    """

    time: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation as a model saw it.

    Attributes:
        name: its id in the file, or the file's stem and part.
        format: the format in the file, or the name of an adapter.
        system: the system prompt, None if the file does not store it separately.
        messages: its messages.
        usage: the provider's report by index of the answer, of its first message in formats with several;
            empty if the file has none.
        model: the model that answered most requests, None if the file names none.
        left_out: the place and the reason of each part of the file that is in no conversation: lines that are
            not JSON, and malformed messages. The first conversation of a file has all of them.
    """

    name: str
    format: str
    system: str | list[dict[str, Any]] | None
    messages: list[dict[str, Any]]
    usage: Mapping[int, Answer] = field(default_factory=dict)
    model: str | None = None
    left_out: Sequence[str] = ()


def problem_in(message: object, where: str) -> str | None:
    """Return why the message at `where` cannot be read, None if it can."""
    scan = result_or_error(lambda: adapter_for(message).scan(message, where, Calls()))
    if isinstance(scan, OffloadError):
        return str(malformed(scan, where))
    return next((str(malformed(error, place)) for place, error in scan.failed), None)


def answer_of(time: object, usage: object) -> Answer | None:
    """Return the report on a request, None without a time or tokens."""
    counted = usage_of(usage)
    with suppress(ValueError):
        moment = datetime.fromisoformat(time) if isinstance(time, str) and counted else None
        if moment and counted:
            return Answer((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), counted)
    return None


@dataclass(slots=True)
class Window:
    """One context window, read row by row; the attributes are those of `Transcript`."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[int, Answer] = field(default_factory=dict)
    models: Counter[str] = field(default_factory=Counter)

    def note(self, index: int, answer: Answer | None, model: object) -> None:
        """Note the report on the answer at an index, and its model; the first report counts."""
        if isinstance(model, str):
            self.models[model] += 1
        if answer is not None:
            self.usage.setdefault(index, answer)


def transcripts_of(
    name: str, kind: str, system: str | None, windows: Iterable[Window]
) -> Iterator[Transcript]:
    """Yield a transcript of each context window of one thread."""
    for number, window in enumerate(windows, 1):
        model = next((model for model, _ in window.models.most_common(1)), None)
        title = name if number == 1 else f"{name}-part-{number}"
        yield Transcript(title, kind, system, window.messages, window.usage, model)
