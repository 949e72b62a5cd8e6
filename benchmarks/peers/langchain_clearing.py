"""LangChain: `ClearToolUsesEdit` of `ContextEditingMiddleware`. It clears and stores nothing: for scale."""

from __future__ import annotations

from langchain.agents.middleware import ClearToolUsesEdit
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from peers._peer import Peer, Step
from peers._tasks import main


class LangChain(Peer):
    """One call and its result, cleared at once."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:  # noqa: ARG002 # none of it
        """See `Peer`."""
        self._clears_later = least_chars is None
        self._edit = ClearToolUsesEdit() if self._clears_later else ClearToolUsesEdit(trigger=0, keep=0)

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`. By default results are cleared when a later request is large."""
        if self._clears_later:
            return text
        call = {"name": "Bash", "args": {}, "id": call_id}
        messages = [AIMessage("", tool_calls=[call]), ToolMessage(text, tool_call_id=call_id)]
        self._edit.apply(messages, count_tokens=count_tokens_approximately)
        return str(messages[1].content)

    def fit(self, steps: list[Step]) -> list[str]:
        """See `Peer`."""
        messages: list[AIMessage | ToolMessage] = []
        for step in steps:
            call = {"name": "Bash", "args": {}, "id": step.id}
            messages += [AIMessage("", tool_calls=[call]), ToolMessage(step.text, tool_call_id=step.id)]
        self._edit.apply(messages, count_tokens=count_tokens_approximately)
        return [str(message.content) for message in messages[1::2]]


if __name__ == "__main__":
    main(LangChain)
