"""The interface of a candidate: it offloads a text and reads parts of it."""

from __future__ import annotations

from collections.abc import Iterable

# What a preview holds where its size can be chosen.
PREVIEW_CHARS = 1_000


class Peer:
    """One agent with one candidate, called the way the candidate's own documentation calls it.

    What a subclass does not implement is not offered: nothing is built here that a user would have to build.

    Attributes:
        calls: calls that the last read back took.
        page_chars: characters from one page to the next that reads by characters.
    """

    calls = 1
    page_chars = 8_000

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

    def find(self, ref: str, text: str) -> str:
        """Return the places of `text`."""
        raise NotImplementedError

    def grep(self, ref: str, pattern: str) -> str:
        """Return the places that a regular expression matches."""
        raise NotImplementedError

    def query(self, ref: str, sql: str) -> str:
        """Return the rows of a query over the text as the table `t`."""
        raise NotImplementedError

    def diff(self, old: str, new: str) -> str:
        """Return the lines in which two offloaded texts differ."""
        raise NotImplementedError

    def fit(self, results: list[str]) -> list[str]:
        """Return all results of a conversation as its next request shows them, where that changes later."""
        return results

    def instructions(self) -> str:
        """Return the tools and the prompt of every request; other libraries are not charged for theirs."""
        return ""
