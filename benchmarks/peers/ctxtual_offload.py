"""ctxtual: the middleware `Offload` of an MCP server, on its `SQLiteStore`, called by a client in memory."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from ctxtual import SQLiteStore
from ctxtual.mcp import Offload
from fastmcp import Client, FastMCP
from peers._peer import Peer
from peers._tasks import main

_PAGE_CHARS = 10_000
_ID = re.compile(r'"result_id":\s*"([^"]+)"')
_PAGES = re.compile(r'"pages":\s*(\d+)')


class Ctxtual(Peer):
    """A server with one tool; a result has no id of a call there, the store gives it one."""

    page_chars = _PAGE_CHARS
    language = "steps"

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """See `Peer`."""
        Path(store).mkdir(parents=True, exist_ok=True)
        threshold = {} if least_chars is None else {"threshold": least_chars}
        # Its default keeps the last 200 results only; the work here has more.
        limits = {"max_results": 10**6, "max_total_chars": 10**10}
        results = SQLiteStore(Path(store, "ctx.db"))
        server = FastMCP("bench")
        server.tool(self._output, name="Bash")
        server.add_middleware(Offload(store=results, scope=lambda: session, **limits, **threshold))
        self._text = ""
        self._loop = asyncio.Runner()
        self._client = self._loop.run(Client(server).__aenter__())

    def offload(self, text: str, call_id: str) -> str:  # noqa: ARG002 # MCP has no call ids
        """See `Peer`."""
        self._text = text
        return self._call("Bash")

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        found = _ID.search(shown)
        if found is None:
            raise LookupError(f"no result_id in {shown[:200]!r}")
        return found[1]

    def chars(self, ref: str, offset: int, count: int) -> str:  # noqa: ARG002 # a page has its size
        """See `Peer`: pages of 10,000 characters."""
        return self._call("result_read", result_id=ref, page=offset // _PAGE_CHARS)

    def tail(self, ref: str, count: int) -> str:  # noqa: ARG002 # a page has its size
        """See `Peer`: the last page; the first call returns its number."""
        found = _PAGES.search(self._call("result_read", result_id=ref))
        self.calls = 2
        return self._call("result_read", result_id=ref, page=int(found[1]) - 1 if found else 0)

    def find(self, ref: str, text: str, more: str = "") -> str:
        """See `Peer`."""
        return self._call(
            "result_search", result_id=ref, query=text, **({"max_results": int(more)} if more else {})
        )

    def query(self, ref: str, sql: str) -> str:
        """See `Peer`."""
        return self._call("result_query", result_id=ref, steps=json.loads(sql))

    def _output(self) -> str:
        return self._text

    def _call(self, name: str, **arguments: Any) -> str:
        result = self._loop.run(self._client.call_tool(name, arguments, raise_on_error=False))
        return "\n".join(block.text for block in result.content)


if __name__ == "__main__":
    main(Ctxtual)
