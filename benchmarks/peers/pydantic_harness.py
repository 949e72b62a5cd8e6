"""pydantic-ai-harness: the capability `ToolOutputLimits` with its `LocalFileStore`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from peers._peer import PREVIEW_CHARS, Peer
from peers._tasks import main
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RunUsage
from pydantic_ai_harness import ToolOutputLimits
from pydantic_ai_harness.tool_output_limits import Band, LocalFileStore, Spill, Truncate

_HANDLE = re.compile(r"stored to handle '([^']+)'")


class Harness(Peer):
    """The capability behind one tool call of a run."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """See `Peer`."""
        bands = {}
        if least_chars is not None:
            bands["bands"] = [Band(least_chars, Spill(preview_chars=PREVIEW_CHARS, then=Truncate()))]
        self._limits = ToolOutputLimits(store=LocalFileStore(base_dir=Path(store)), **bands)
        self._reader = self._limits.get_toolset().tools["read_tool_result"].function
        self._context = RunContext(deps=None, model=TestModel(), usage=RunUsage(), run_id=session)
        self._loop = asyncio.Runner()

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        call = ToolCallPart(tool_name="Bash", args={}, tool_call_id=call_id)
        reduced = self._loop.run(
            self._limits.after_tool_execute(
                self._context, call=call, tool_def=ToolDefinition(name="Bash"), args={}, result=text
            )
        )
        return str(getattr(reduced, "return_value", reduced))

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        found = _HANDLE.search(shown)
        if found is None:
            raise LookupError(f"no handle in {shown[:200]!r}")
        return found[1]

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        return self._read(ref, offset=first - 1, limit=count)

    def tail(self, ref: str, count: int) -> str:
        """See `Peer`."""
        return self._read(ref, limit=count, from_end=True)

    def find(self, ref: str, text: str, more: str = "") -> str:
        """See `Peer`."""
        return self._read(ref, pattern=text, offset=int(more or 0))

    def _read(self, ref: str, **arguments: Any) -> str:
        return str(self._loop.run(self._reader(self._context, ref, **arguments)))


if __name__ == "__main__":
    main(Harness)
