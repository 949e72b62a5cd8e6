"""The interface of a candidate: it offloads a text and reads parts of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

# What a preview holds where its size can be chosen.
PREVIEW_CHARS = 1_000
# Characters of one read, and lines that a search for the text of an edit shows around a match.
READ_CHARS, CONTEXT_LINES = 8_192, 3


class Step(NamedTuple):
    """A call of the agent with its result.

    Attributes:
        id: the id of the call.
        call: what the agent calls: its `tool` is "call" or another.
        argument: what it is about, in a word.
        text: the result.
        number: the number of the result; None of what was read back or again, and of edits that failed.
    """

    id: str
    call: dict[str, Any]
    argument: str
    text: str
    number: int | None


class Peer:
    """One agent with one candidate, called the way the candidate's own documentation calls it.

    What a subclass does not implement is not offered: nothing is built here that a user would have to build.

    Attributes:
        calls: calls that the last read back took.
        page_chars: characters from one page to the next that reads by characters.
        language: of its queries: "sql", or "steps" of a pipeline as JSON.
        first: results of a search that are counted.
    """

    calls = 1
    page_chars = 8_000
    language = "sql"
    first = 5

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """Open a store.

        Args:
            store: a folder, or `s3://BUCKET/PREFIX`.
            session: the agent's name for its conversation.
            least_chars: the threshold; None uses the candidate's default.
        """

    def offload(self, text: str, call_id: str) -> str:
        """Return the replacement of a tool result in the context: `text` itself if it was kept."""
        raise NotImplementedError

    def ref(self, shown: str) -> str:
        """Return the name of the offloaded text in its replacement."""
        raise NotImplementedError

    def stream(self, chunks: Iterable[str], call_id: str) -> str:
        """Offload a result that comes in parts, and is never whole in memory."""
        raise NotImplementedError

    def lines(self, ref: str, first: int, count: int) -> str:
        """Return `count` lines from line `first` on, counted from 1."""
        raise NotImplementedError

    def chars(self, ref: str, offset: int, count: int) -> str:
        """Return `count` characters from `offset` on, or the page that holds them."""
        raise NotImplementedError

    def tail(self, ref: str, count: int) -> str:
        """Return the last `count` lines."""
        raise NotImplementedError

    def find(self, ref: str, text: str, more: str = "") -> str:
        """Return the places of `text`; `more` is what an answer said of going on."""
        raise NotImplementedError

    def find_all(self, text: str) -> str:
        """Return the places of `text` in all that is stored."""
        raise NotImplementedError

    def near(self, ref: str, text: str) -> str:
        """Return the places of `text`, and the lines around each if the search can show them."""
        return self.find(ref, text)

    def near_all(self, text: str) -> str:
        """Return the same for all that is stored."""
        return self.find_all(text)

    def grep(self, ref: str, pattern: str) -> str:
        """Return the places that a regular expression matches."""
        raise NotImplementedError

    def search(self, query: str) -> list[str]:
        """Return the `first` results of a search by words in all that is stored, as the model sees them."""
        raise NotImplementedError

    def query(self, ref: str, sql: str) -> str:
        """Return the rows of a query over the text, in `language`: as the table `t`, or as a list."""
        raise NotImplementedError

    def diff(self, old: str, new: str) -> str:
        """Return the lines in which two offloaded texts differ."""
        raise NotImplementedError

    def fit(self, steps: list[Step]) -> list[str]:
        """Return all results in view as the next request of the conversation shows them."""
        return [step.text for step in steps]

    def compact(self, before: str, steps: list[Step], done: int, stored: dict[int, str]) -> str:  # noqa: ARG002 # what goes is lost
        """Return the message that replaces `before`, the last such message, and the steps after it.

        A model's summary is not here to be had: it is taken to know the number of calls that are `done`, and
        the names of the results that are stored, in `stored` by their number.
        """
        names = "\n".join(f"Result {number} is stored: {ref}" for number, ref in stored.items())
        return f"{done} calls were done.\n{names}"

    def session_for(self, agent: str, ref: str) -> str | None:  # noqa: ARG002 # they share all
        """Return the session of another agent that is to read `ref`; None if the two work in one."""
        return None

    def instructions(self) -> str:
        """Return the tools and the prompt of every request; other libraries are not charged for theirs."""
        return ""
