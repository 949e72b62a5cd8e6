"""pydantic-ai-harness: `ConversationSearch` over the messages that `StepPersistence` keeps."""

from __future__ import annotations

import asyncio

from peers._peer import Peer
from peers._tasks import main
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage
from pydantic_ai_harness import ConversationSearch
from pydantic_ai_harness.conversation_search import SnapshotHistorySource
from pydantic_ai_harness.step_persistence import ContinuableSnapshot, InMemoryStepStore, RunRecord


class History(Peer):
    """A run of calls and results, as one snapshot of its messages."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:  # noqa: ARG002 # in memory, whole
        """See `Peer`."""
        self._loop, self._messages, self._steps = asyncio.Runner(), list[ModelMessage](), InMemoryStepStore()
        self._run = {"run_id": "run", "conversation_id": session}
        self._loop.run(self._steps.register_run(RunRecord(**self._run)))
        source = SnapshotHistorySource(self._steps)
        search = ConversationSearch(source, scope="conversation", max_matches=self.first)
        self._search = search.get_toolset().tools["search_conversation_history"].function
        self._context = RunContext(deps=None, model=TestModel(), usage=RunUsage(), **self._run)

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        call = ToolCallPart(tool_name="Bash", args={}, tool_call_id=call_id)
        result = ToolReturnPart(tool_name="Bash", content=text, tool_call_id=call_id)
        self._messages += [ModelResponse(parts=[call]), ModelRequest(parts=[result])]
        snapshot = ContinuableSnapshot(step_index=len(self._messages), messages=self._messages, **self._run)
        self._loop.run(self._steps.save_snapshot(snapshot))
        return text

    def search(self, query: str) -> list[str]:
        """See `Peer`. The answer begins with the query."""
        answer = self._loop.run(self._search(self._context, query))
        return str(answer).partition(" persisted messages:\n\n")[2].split("\n\n---\n\n")


if __name__ == "__main__":
    main(History)
