"""strands-agents: `search_memory` over a `FileMemoryStore` with the index of `Bm25SearchStrategy`.

`ContextOffloader` drops that index, and its tool searches one result by a pattern.
"""

from __future__ import annotations

import asyncio

from peers._peer import Peer
from peers._tasks import main
from strands.memory import MemoryManager
from strands.storage import LocalFileStorage
from strands.storage.search import Bm25SearchStrategy
from strands.vended_memory_stores.file_memory_store import FileMemoryStore


class Memory(Peer):
    """Each result as an entry of a memory."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:  # noqa: ARG002 # whole
        """See `Peer`."""
        storage = LocalFileStorage(store, search_strategy=Bm25SearchStrategy())
        self._memory = FileMemoryStore(name=session, storage=storage)
        self._manager = MemoryManager(stores=[self._memory])
        self._loop = asyncio.Runner()

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`. Entries with the same first line are merged: each has one of its own."""
        self._loop.run(self._memory.add(f"{call_id}\n{text}"))
        return text

    def search(self, query: str) -> list[str]:
        """See `Peer`. Entries are whole."""
        entries = self._loop.run(self._manager.search(query, {"max_search_results": self.first}))
        return [entry.content for entry in entries]


if __name__ == "__main__":
    main(Memory)
