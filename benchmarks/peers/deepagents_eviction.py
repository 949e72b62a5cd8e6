"""deepagents: `FilesystemMiddleware`, which evicts a large tool result to its backend, here a folder."""

from __future__ import annotations

import re
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.summarization import SummarizationMiddleware
from langchain.tools import ToolRuntime
from langchain.tools.tool_node import ToolCallRequest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from peers._peer import Peer, Step
from peers._tasks import main

_CHARS_PER_TOKEN = 4
_PATH = re.compile(r"saved in the filesystem at this path: (\S+)")
_NUMBERED = re.compile(r"^\s*(\d+)\s", re.MULTILINE)


class DeepAgents(Peer):
    """The middleware around one tool call; its backend takes no name of a session."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:  # noqa: ARG002 # no sessions
        """See `Peer`."""
        self._backend = FilesystemBackend(root_dir=store, virtual_mode=True)
        limit = (
            {} if least_chars is None else {"tool_token_limit_before_evict": least_chars // _CHARS_PER_TOKEN}
        )
        self._middleware = FilesystemMiddleware(backend=self._backend, **limit)
        self._tools = {tool.name: tool for tool in self._middleware.tools}
        self._last_lines: dict[str, int] = {}

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        call = {"type": "tool_call", "name": "Bash", "args": {}, "id": call_id}
        request = ToolCallRequest(tool_call=call, tool=None, state={}, runtime=_runtime(call_id))
        result = ToolMessage(text, tool_call_id=call_id, name="Bash")
        return str(self._middleware.wrap_tool_call(request, lambda _: result).content)

    def ref(self, shown: str) -> str:
        """See `Peer`. The preview numbers its lines, so the model knows how many there are."""
        found = _PATH.search(shown)
        if found is None:
            raise LookupError(f"no path in {shown[:200]!r}")
        self._last_lines[found[1]] = int(_NUMBERED.findall(shown)[-1])
        return found[1]

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        return self._call("read_file", file_path=ref, offset=first - 1, limit=count)

    def tail(self, ref: str, count: int) -> str:
        """See `Peer`."""
        return self.lines(ref, self._last_lines[ref] - count + 1, count)

    def find(self, ref: str, text: str, more: str = "") -> str:
        """See `Peer`. A path of a file is searched as its folder, so a glob names the file."""
        most = {"max_count": int(more)} if more else {}
        folder, _, name = ref.rpartition("/")
        return self._call("grep", pattern=text, path=folder, glob=name, output_mode="content", **most)

    def find_all(self, text: str) -> str:
        """See `Peer`."""
        return self._call("grep", pattern=text, path="/", output_mode="content")

    def compact(self, before: str, steps: list[Step], done: int, stored: dict[int, str]) -> str:
        """See `Peer`. Its summary message names the file that the messages were appended to."""
        summary = super().compact(before, steps, done, stored)
        middleware = SummarizationMiddleware(FakeListChatModel(responses=[summary]), backend=self._backend)
        messages: list[AnyMessage] = []
        for step in steps:
            call = {"name": "Bash", "args": {"command": step.argument}, "id": step.id}
            messages += [AIMessage("", tool_calls=[call]), ToolMessage(step.text, tool_call_id=step.id)]
        path = middleware._offload_to_backend(self._backend, messages, "lead")  # noqa: SLF001 # what its hook calls
        [message] = middleware._build_new_messages_with_path(summary, path)  # noqa: SLF001
        return str(message.content)

    def _call(self, name: str, **arguments: Any) -> str:
        return str(self._tools[name].func(runtime=_runtime("read"), **arguments).content)


def _runtime(call_id: str) -> Any:
    nothing: dict[str, Any] = {"state": {}, "context": None, "config": {}, "store": None, "tools": []}
    return ToolRuntime(stream_writer=lambda _: None, tool_call_id=call_id, **nothing)


if __name__ == "__main__":
    main(DeepAgents)
