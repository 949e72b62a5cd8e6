"""A loop whose model reads stored items with the retrieval tools, in the messages of any API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import formats

from offload import Offloader, OffloadPolicy, OffloadResult, Rule
from offload.messages.formats import scan_of
from offload.storage.store import OffloadStore

LOG = "\n".join(f"line {n}: the value of the {n}th sample is {n * n % 977}" for n in range(1500))
POLICY = OffloadPolicy(
    types={"tool_result": Rule(min_tokens=1000, preview_chars=200)},
    answers=Rule(min_tokens=200, after_replies=3, preview_chars=0),
    history="editable",
)


class Reading:
    """A conversation, with what was sent of it last.

    Attributes:
        messages: all messages in full.
        sent: the result of the last call of `offload`.
        ref: the id of the first record.
    """

    def __init__(
        self,
        store: OffloadStore | Path,
        kind: str = "anthropic",
        *,
        policy: OffloadPolicy = POLICY,
        renews: bool = False,
        log: str = LOG,
        **options: Any,
    ) -> None:
        self._options = {"session": "s", "policy": policy, **options}
        self._store = store
        self._renews = renews
        self.kind = kind
        self.off = Offloader(store, **self._options)
        self.messages = [formats.user(kind, "look at the log")]
        self.calls = 0
        self.add("Bash", {"command": "cat log"}, log)
        self.ref = self.sent.records[0].ref

    def opened(self) -> Offloader:
        """Return an offloader of another process."""
        return Offloader(self._store, **self._options)

    def add(self, tool: str, arguments: dict[str, Any], result: str, **kwargs: Any) -> OffloadResult:
        """Append a call and its result, and offload after each message."""
        self.calls += 1
        for message in formats.exchange(self.kind, tool, arguments, result, f"c{self.calls}"):
            self.messages.append(message)
            if self._renews:
                self.off = self.opened()
            self.sent = self.off.offload(self.messages, **kwargs)
            assert not self.sent.errors
        return self.sent

    def read(self, tool: str = "context_read", *, prefix: str = "", **arguments: Any) -> str:
        """Let the model read, and return the answer."""
        answer = self.off.tools.call(tool, arguments)
        self.add(prefix + tool, arguments, answer)
        return answer

    def work(self, replies: int = 3) -> None:
        """Let the model do something else for some replies."""
        for _ in range(replies):
            self.add("Bash", {"command": "true"}, "done")

    def replaced(self) -> dict[str, str]:
        """Return the placeholders of answers by the ids of their calls."""
        return {
            decision.item.tool_use_id: self.text_of(decision.item.tool_use_id)
            for decision in self.sent.decisions
            if decision.ref is not None and decision.item.tool_name != "Bash" and decision.item.tool_use_id
        }

    def text_of(self, call: str) -> str:
        """Return the text of a result as it was sent."""
        [text] = [
            item.text
            for message in self.sent.messages
            for item in scan_of(message).items
            if item.item_type == "tool_result" and item.tool_use_id == call
        ]
        return text
