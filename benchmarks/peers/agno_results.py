"""agno: `ResultStore` on `SqliteDb`."""

from __future__ import annotations

import re
from pathlib import Path

from agno.db.sqlite import SqliteDb
from agno.offload import ResultStore
from peers._peer import CONTEXT_LINES, PREVIEW_CHARS, Peer
from peers._tasks import main

_ENVELOPE = re.compile(r'<result id="(res_\w+)" tool="[^"]*" lines="(\d+)"')

_REFUSED = re.compile(r'stored="false" reason="([^"]+)"')


class Agno(Peer):
    """The store as the agent's tool calls reach it."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """See `Peer`."""
        Path(store).mkdir(parents=True, exist_ok=True)
        sizes = {}
        if least_chars is not None:
            sizes = {"threshold_chars": least_chars, "preview_chars": PREVIEW_CHARS}
        self._results = ResultStore(db=SqliteDb(db_file=str(Path(store, "agent.db"))), **sizes)
        self._session = session
        self._line_counts: dict[str, int] = {}

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        if not self._results.should_offload("Bash", text):
            return text
        shown = self._results.offload_for_model(
            session_id=self._session,
            run_id="run",
            tool_call_id=call_id,
            tool_name="Bash",
            tool_args={},
            output=text,
        )
        return str(shown)

    def ref(self, shown: str) -> str:
        """See `Peer`. The envelope says how many lines there are."""
        found = _ENVELOPE.search(shown)
        if found is None:
            refused = _REFUSED.search(shown)
            raise LookupError(refused[1] if refused else f"no id in {shown[:200]!r}")
        self._line_counts[found[1]] = int(found[2])
        return found[1]

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        return str(self._results.read(ref, start_line=first, end_line=first + count - 1).text)

    def chars(self, ref: str, offset: int, count: int) -> str:
        """See `Peer`. Characters count from the beginning of a line: the first one here."""
        return str(self._results.read(ref, start_char=offset, max_chars=count).text)

    def tail(self, ref: str, count: int) -> str:
        """See `Peer`."""
        return self.lines(ref, self._line_counts[ref] - count + 1, count)

    def find(self, ref: str, text: str, more: str = "") -> str:  # noqa: ARG002 # a search does not go on
        """See `Peer`."""
        return self.grep(ref, re.escape(text))

    def grep(self, ref: str, pattern: str) -> str:
        """See `Peer`. The agent's tool says whether more matches follow."""
        return self._found(ref, pattern, 0)

    def near(self, ref: str, text: str) -> str:
        """See `Peer`."""
        return self._found(ref, re.escape(text), CONTEXT_LINES)

    def _found(self, ref: str, pattern: str, lines: int) -> str:
        matches = self._results.search(ref, pattern, lines)
        note = ["(more follow; narrow the pattern):"] if matches and matches[-1].more else []
        return "\n".join([*note, *(match.line for match in matches)])


if __name__ == "__main__":
    main(Agno)
