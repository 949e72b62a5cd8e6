"""The proxy: between a client and any other server, it passes every message on, and offloads large results.

It relays messages, not calls: progress, cancellation, logging, sampling, elicitation, and whatever later
revisions of the protocol add, pass as they came, under the ids that both sides gave them. Changed are the
greeting, which tells of the tools and resources that are added; the lists, which show them; and results.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types.jsonrpc import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from offload.errors import ConfigError
from offload.integrations.mcp._context import SCHEME, TEMPLATE, ContextAnswers, Json
from offload.integrations.mcp._messages import (
    LISTS,
    as_the_server_knows_it,
    empty_list,
    extended,
    messages_of,
    own_version,
    result_of,
    shown_tool,
    stamped,
)
from offload.integrations.mcp._results import ResultOffloader, ToolCall
from offload.integrations.mcp._server import FIRST_WITH_LINKS, error_code
from offload.threads import in_thread
from offload.tools import TOOL_NAMES

_log = logging.getLogger("offload")

# What a cursor of our own pages of resources begins with.
_OWN_PAGES = "offload:"
_CALL_ID = "claudecode/toolUseId"
_ENDED = (
    "the wrapped server has ended; start it again by reconnecting. What it returned before can still be "
    "read: context_list shows it"
)
Streams = tuple[Any, Any]


async def wrap(command: Sequence[str], results: ResultOffloader) -> None:
    """Run the server that `command` starts behind a proxy on stdin and stdout, until stdin ends.

    The server gets this process's environment, and its stderr is ours.

    Raises:
        ConfigError: the command cannot be started.
    """
    # The thread that waits for a line of stdin could not be stopped in any other way.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=dict(os.environ), encoding_error_handler="replace"
    )
    proxy = Proxy(results)
    try:
        # What writes to stdout ends when its stream is closed, and only with it the rest.
        async with stdio_client(server) as inner, stdio_server() as outer, outer[1]:
            await proxy.run(outer, inner)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot start {command[0]!r}: {error}") from error


class Proxy:
    """Stands between one client and one server.

    Args:
        results: offloads what tools return; its session is what the added tools and resources read.
    """

    def __init__(self, results: ResultOffloader) -> None:
        self._results = results
        self._answers = ContextAnswers(results.offloader)
        self._passed: dict[Any, Any] = {}
        self._version = ""
        self._has_server = True
        self._to_client: Any = None
        self._to_server: Any = None
        self._tasks: Any = None

    async def run(self, client: Streams, server: Streams) -> None:
        """Relay until the client's messages end.

        Args:
            client: the streams of its messages, to be read and written, as the SDK's transports give them.
            server: those of the wrapped server.
        """
        self._to_client, self._to_server = client[1], server[1]
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._relay_server, server[0])
            async for message in messages_of(client[0]):
                await self._from_client(message)
            self._tasks.cancel_scope.cancel()

    # From the client

    async def _from_client(self, message: Any) -> None:
        if not isinstance(message, JSONRPCRequest):
            self._forget_cancelled(message)
            await self._pass_on(message)
            return
        answer = self._own_answer(message)
        if answer is not None:
            self._tasks.start_soon(self._answer, message, answer)
            return
        self._passed[message.id] = message
        is_sent = await self._pass_on(as_the_server_knows_it(message))
        # While it was being sent, the server's end may have answered it already.
        if not is_sent and self._passed.pop(message.id, None) is not None:
            await self._answer_alone(message)

    def _forget_cancelled(self, message: Any) -> None:
        """Expect no response to a request that the client gave up."""
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            given_up = (message.params or {}).get("requestId")
            if isinstance(given_up, int | str):
                self._passed.pop(given_up, None)

    async def _pass_on(self, message: Any) -> bool:
        """Send a message to the wrapped server; tell whether there is one."""
        if self._has_server:
            try:
                await self._to_server.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._has_server = False
        return self._has_server

    def _own_answer(self, request: Any) -> Callable[[], Json] | None:
        """Return what answers a request that is meant for us."""
        answers, params = self._answers, request.params or {}
        match request.method, params:
            case "tools/call", {"name": str(name)} if name in TOOL_NAMES:
                has_links = self._has_links(request)
                return partial(answers.call, name, params.get("arguments"), has_links=has_links)
            case "resources/read", {"uri": str(uri)} if uri.startswith(SCHEME):
                return partial(answers.read_resource, uri)
            case "resources/list", {"cursor": str(cursor)} if cursor.startswith(_OWN_PAGES):
                return partial(self._own_page, cursor.removeprefix(_OWN_PAGES))
        return None

    async def _answer(self, request: Any, answer: Callable[[], Json]) -> None:
        try:
            result = await in_thread(answer)
        except Exception as error:  # noqa: BLE001 # a client that waits must be answered
            await self._fail(request, error_code(error), str(error))
        else:
            await self._reply(request, stamped(request, result))

    def _own_page(self, cursor: str | None) -> Json:
        page = self._answers.list_resources(cursor)
        if "nextCursor" in page:
            page["nextCursor"] = _OWN_PAGES + page["nextCursor"]
        return page

    # From the server

    async def _relay_server(self, stream: Any) -> None:
        async for message in messages_of(stream):
            await self._from_server(message)
        self._has_server = False
        _log.warning("%s", _ENDED)
        waiting, self._passed = self._passed, {}
        for request in waiting.values():
            await self._answer_alone(request)

    async def _from_server(self, message: Any) -> None:
        is_response = isinstance(message, JSONRPCResponse | JSONRPCError)
        request = self._passed.pop(message.id, None) if is_response else None
        result = None if request is None else result_of(request, message)
        if request is None or result is None:
            await self._to_client.send(SessionMessage(message))
        elif request.method in ("tools/call", "resources/list"):
            # The store is asked: other messages need not wait for it.
            self._tasks.start_soon(self._reply_in_thread, request, result)
        else:
            await self._reply(request, self._shown(request, result))

    async def _reply_in_thread(self, request: Any, result: Json) -> None:
        await self._reply(request, await in_thread(self._shown, request, result))

    def _shown(self, request: Any, result: Json) -> Json:
        """Return a result as the client sees it; as it came where it cannot be understood."""
        try:
            match request.method:
                case "initialize" | "server/discover":
                    return self._greeting(result)
                case "tools/call":
                    return self._results.offload(result, self._call(request))
                case "tools/list":
                    tools = [self._results.note(shown_tool(tool)) for tool in result["tools"]]
                    return extended({**result, "tools": tools}, {"tools": self._answers.tools()})
                case "resources/list":
                    return result if result.get("nextCursor") else extended(result, self._own_page(None))
                case "resources/templates/list":
                    return extended(result, {"resourceTemplates": [TEMPLATE]})
        except Exception as error:  # noqa: BLE001 # what other servers send may be anything
            _log.warning("an answer to %s passes as it is: %s", request.method, type(error).__name__)
        return result

    def _greeting(self, result: Json) -> Json:
        version = result.get("protocolVersion")
        self._version = version if isinstance(version, str) else ""
        capabilities = {"tools": {}, "resources": {}, **result.get("capabilities", {})}
        told = [text for text in (result.get("instructions"), self._answers.instructions) if text]
        return {**result, "capabilities": capabilities, "instructions": "\n\n".join(told)}

    def _call(self, request: Any) -> ToolCall:
        meta = request.params.get("_meta")
        call_id = meta.get(_CALL_ID) if isinstance(meta, dict) else None
        return ToolCall(
            tool=request.params["name"],
            id=call_id if isinstance(call_id, str) else None,
            has_links=self._has_links(request),
        )

    def _has_links(self, request: Any) -> bool:
        return (own_version(request) or self._version) >= FIRST_WITH_LINKS

    # To the client

    async def _answer_alone(self, request: Any) -> None:
        """Answer in place of a server that has ended: a list is ours alone, anything else fails."""
        if request.method in LISTS:
            await self._reply_in_thread(request, empty_list(request))
        else:
            await self._fail(request)

    async def _reply(self, request: Any, result: Json) -> None:
        await self._to_client.send(
            SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result))
        )

    async def _fail(self, request: Any, code: int = -32000, said: str = _ENDED) -> None:
        """Answer a request that failed: a model sees why its call did, a client any other request."""
        if request.method == "tools/call":
            content = [{"type": "text", "text": f"Error: {said}"}]
            await self._reply(request, stamped(request, {"content": content, "isError": True}))
            return
        error = ErrorData(code=code, message=said)
        await self._to_client.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))
