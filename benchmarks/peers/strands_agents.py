"""strands-agents: the plugin `ContextOffloader` of an `Agent`, on `LocalFileStorage` or `S3Storage`."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from peers._peer import PREVIEW_CHARS, Peer
from peers._tasks import main
from strands import Agent
from strands.hooks import AfterToolCallEvent
from strands.models import Model
from strands.storage import LocalFileStorage, S3Storage
from strands.vended_plugins.context_offloader import ContextOffloader

_CHARS_PER_TOKEN = 4
_LAST_LINE = 10**9
_REF = re.compile(r"\[Stored references:\]\n\s*(\S+) \(")
_HEADER = re.compile(r"Lines \d+-\d+ of (\d+)")


class _Silent(Model):
    """The model of an agent that is never asked; it counts tokens as every model does by default."""

    def update_config(self, **_: Any) -> None:
        """Change nothing."""

    def get_config(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Answer nothing."""
        raise NotImplementedError

    def stream(self, *_: Any, **__: Any) -> Any:
        """Answer nothing."""
        raise NotImplementedError


class Strands(Peer):
    """An agent whose tool has just returned."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """See `Peer`."""
        bucket, _, prefix = store.removeprefix("s3://").partition("/")
        is_s3 = store.startswith("s3://")
        storage = S3Storage(bucket, prefix=prefix) if is_s3 else LocalFileStorage(store)
        sizes = {}
        if least_chars is not None:
            sizes["max_result_tokens"] = least_chars // _CHARS_PER_TOKEN
            sizes["preview_tokens"] = PREVIEW_CHARS // _CHARS_PER_TOKEN
        plugin = ContextOffloader(storage, **sizes)
        self._agent = Agent(model=_Silent(), plugins=[plugin], agent_id=session, callback_handler=None)
        self._loop = asyncio.Runner()

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        event = AfterToolCallEvent(
            agent=self._agent,
            selected_tool=None,
            tool_use={"toolUseId": call_id, "name": "Bash", "input": {}},
            invocation_state={},
            result={"toolUseId": call_id, "status": "success", "content": [{"text": text}]},
        )
        self._loop.run(self._agent.hooks.invoke_callbacks_async(event))
        return str(event.result["content"][0]["text"])

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        found = _REF.search(shown)
        if found is None:
            raise LookupError(f"no ref in {shown[-200:]!r}")
        return found[1]

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        return self._retrieve(ref, line_range={"start": first, "end": first + count - 1})

    def tail(self, ref: str, count: int) -> str:
        """See `Peer`. The placeholder has no line count: a first call returns it."""
        found = _HEADER.search(self._retrieve(ref, line_range={"start": 1, "end": 1}))
        total = int(found[1]) if found else count
        self.calls = 2
        return self.lines(ref, total - count + 1, count)

    def find(self, ref: str, text: str, more: str = "") -> str:
        """See `Peer`."""
        within = {"line_range": {"start": int(more), "end": _LAST_LINE}} if more else {}
        return self._retrieve(ref, pattern=re.escape(text), **within)

    def grep(self, ref: str, pattern: str) -> str:
        """See `Peer`."""
        return self._retrieve(ref, pattern=pattern)

    def _retrieve(self, ref: str, **arguments: Any) -> str:
        call = self._agent.tool.retrieve_offloaded_content
        result = call(reference=ref, record_direct_tool_call=False, **arguments)
        return "\n".join(block["text"] for block in result["content"] if "text" in block)


if __name__ == "__main__":
    main(Strands)
