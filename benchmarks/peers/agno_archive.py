"""agno: `search_compacted_messages` over the messages that a compaction replaced."""

from __future__ import annotations

from pathlib import Path

from agno.compaction import Compaction, CompactionRecord
from agno.db.sqlite import SqliteDb
from agno.models.message import Message
from peers._peer import Peer
from peers._tasks import main


class Archive(Peer):
    """The archive as a compaction of the whole conversation writes it."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:  # noqa: ARG002 # whole
        """See `Peer`."""
        Path(store).mkdir(parents=True, exist_ok=True)
        self._db, self._session = SqliteDb(db_file=str(Path(store, "agent.db"))), session
        self._compaction, self._messages = Compaction(), list[Message]()

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        self._messages.append(Message(role="tool", tool_name="Bash", tool_call_id=call_id, content=text))
        return text

    def search(self, query: str) -> list[str]:
        """See `Peer`. The conversation is compacted before a search; up to 20 lines are one answer."""
        if self._messages:
            record = CompactionRecord(summary="Calls were done.", messages_compacted=len(self._messages))
            self._compaction.archive_for(self._session, self._db).write(record, self._messages)
            self._messages = []
        (tool,) = self._compaction.tools_for(self._session, self._db)
        answer = tool(query)
        return [] if answer.startswith("No compacted history") else [answer]


if __name__ == "__main__":
    main(Archive)
