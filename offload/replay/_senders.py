"""Ways to send a recorded conversation: as it is, or through an offloader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress, count
from operator import is_not
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from offload import Offloader, OffloadPolicy, OffloadResult
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.messages.openai_responses import OpenAIResponsesAdapter
from offload.replay._names import tokens_of
from offload.replay._needs import Need
from offload.replay._recording import Recording, Request, texts_of


class Sender(Protocol):
    """A way to send a conversation."""

    @property
    def tools(self) -> float:
        """Tokens of its tool definitions and its prompt, which are part of every request."""

    def replaced(self, request: Request, /) -> Mapping[int, str]:
        """Return texts that are replaced in this request, by row; those replaced before may be missing.

        The texts of read-backs have rows too, which are numbered on from those of the recording.
        """

    def read(self, need: Need, /) -> Sequence[str] | None:
        """Read back; return the texts of call and answer, which are part of each later request.

        None if they are not known; then the answer has the usual size, and is kept.
        """


class Untouched:
    """Sends a conversation as it is."""

    tools = 0.0

    def replaced(self, _request: Request) -> Mapping[int, str]:
        """Return no texts."""
        return {}

    def read(self, _need: Need) -> None:
        """Do nothing."""


class _MessageOrigin(NamedTuple):
    """The recorded index of a message, None for one of a read-back; and the row of its first text."""

    message: int | None
    row: int


class Offloading:
    """Sends a conversation through an offloader, whose clock shows the time of the request.

    A read-back is answered by the retrieval tools of the offloader; call and answer are messages of the
    conversation from then on, which may be offloaded as any other.

    Args:
        recording: the conversation.
        policy: which items are offloaded.
        store: the store of the records, in a session of the transcript's name; the default keeps none.
        model: the name of the model that the offloader gets; None for no name.

    Attributes:
        offloader: the offloader.
        tools: as in `Sender`.
    """

    def __init__(
        self,
        recording: Recording,
        policy: OffloadPolicy,
        store: str | None = None,
        model: str | None = None,
    ) -> None:
        self._recording = recording
        self._now = 0.0
        url, session = (store, recording.transcript.name) if store else ("memory://", "simulation")
        self.offloader = Offloader(
            url,
            session=session,
            policy=policy,
            on_error="raise",
            clock=lambda: self._now,
            model=model,
        )
        definitions = json.dumps(self.offloader.tools.definitions("anthropic"), ensure_ascii=False)
        self.tools = tokens_of(definitions + self.offloader.prompt())
        # The messages of the conversation and of the reads in it.
        self._messages: list[Any] = []
        self._origins: list[_MessageOrigin] = []
        self._recorded = 0
        self._next_row = len(recording.rows)
        self._sent: list[Any] = []

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the texts of the messages that changed since the last request."""
        self._now = request.time
        self._add_until(request.answer)
        before = [*self._sent, *self._messages[len(self._sent) :]]
        self._sent = sent = self.offloader.offload(self._messages).messages
        changed = compress(count(), map(is_not, sent, before))
        return {
            row: text for at in changed for row, text in enumerate(texts_of(sent[at]), self._origins[at].row)
        }

    def read(self, need: Need) -> list[str] | None:
        """Read the record behind a placeholder."""
        ref = self.offloader.options.placeholder.find_ref(need.placeholder)
        if ref is None:
            return None
        arguments = {"id": ref, **need.arguments}
        answer = self.offloader.tools.call(need.tool, arguments)
        kind, texts = self._recording.transcript.format, list[str]()
        for message in exchange(kind, Answered(f"read_{self._next_row}", need.tool, arguments, answer)):
            self._messages.append(message)
            self._origins.append(_MessageOrigin(None, self._next_row + len(texts)))
            texts += texts_of(message)
        self._next_row += len(texts)
        return texts

    def finish(self) -> OffloadResult:
        """Return the result of offloading the whole conversation, the last answer too.

        It has the decisions on recorded items alone, with their places in the recording.
        """
        self._add_until(len(self._recording.transcript.messages))
        result = self.offloader.offload(self._messages)
        indexed = [(decision, self._origins[decision.item.message].message) for decision in result.decisions]
        decisions = [
            structs.replace(decision, item=decision.item._replace(message=index))
            for decision, index in indexed
            if index is not None
        ]
        read = sum(decision.item.tokens for decision, index in indexed if index is None)
        return replace(result, decided=(decisions, len(decisions)), tokens_before=result.tokens_before - read)

    def _add_until(self, end: int) -> None:
        """Add the recorded messages before `end`."""
        new = range(self._recorded, end)
        self._messages += self._recording.transcript.messages[self._recorded : end]
        self._origins += [_MessageOrigin(index, self._recording.starts[index]) for index in new]
        self._recorded = max(end, self._recorded)


class Answered(NamedTuple):
    """A call of a retrieval tool, and its answer."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    answer: str


def exchange(kind: str, *calls: Answered) -> list[dict[str, Any]]:
    """Return the messages of tool calls in one reply, and of their answers, in the format of a transcript."""
    written = [(*call[:2], json.dumps(call.arguments)) for call in calls]
    if kind == OpenAIResponsesAdapter.name:
        return [
            *({"type": "function_call", "call_id": i, "name": n, "arguments": a} for i, n, a in written),
            *({"type": "function_call_output", "call_id": c.call_id, "output": c.answer} for c in calls),
        ]
    if kind.startswith(OpenAIChatAdapter.name):
        made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in written]
        answers = ({"role": "tool", "tool_call_id": c.call_id, "content": c.answer} for c in calls)
        return [{"role": "assistant", "content": None, "tool_calls": made}, *answers]
    uses = [{"type": "tool_use", "id": c.call_id, "name": c.tool, "input": c.arguments} for c in calls]
    results = [{"type": "tool_result", "tool_use_id": c.call_id, "content": c.answer} for c in calls]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
