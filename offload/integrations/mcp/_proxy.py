"""Proxy between a client and any other server: it relays all messages and offloads large results.

The proxy relays messages, not calls, so additions of later protocol revisions pass unchanged. It changes only
the greeting and the lists, which show the added tools and resources, and tool results.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import anyio
from mcp import types
from mcp.server.stdio import stdio_server
from mcp.shared.message import ClientMessageMetadata, ServerMessageMetadata, SessionMessage
from mcp.types.jsonrpc import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from offload.base.threads.calls import in_thread
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS
from offload.integrations.mcp._context import SCHEME, TEMPLATE, ContextAnswers, Json
from offload.integrations.mcp._results import ResultOffloader, ToolCall
from offload.integrations.mcp._server import FIRST_WITH_LINKS, error_code
from offload.integrations.mcp._upstream import RequestHeaders, Streams, Upstream, command_upstream
from offload.reading.tools.answers import error_for_model

_log = logging.getLogger("offload")

# Prefix of the cursors to the proxy's own resource pages.
_OWN_PAGES = "offload:"
_CALL_ID = "claudecode/toolUseId"
_EXITED = (
    "the wrapped MCP server exited; reconnect to restart it. Earlier results can still be read: "
    "call context_list"
)
# A tool of the wrapped server that is named like a retrieval tool gets the prefix inner_, and one with that
# prefix gets another. So no two tools share a name, and the mapping needs no state.
_RESERVED = re.compile(rf"(inner_)*({'|'.join(RETRIEVAL_TOOLS)})")
_INNER = "inner_"
_UNCACHED: Json = {"ttlMs": 0, "cacheScope": "private"}
# The result field of each list that a server may not support.
_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


async def wrap(server: Sequence[str] | Upstream, results: ResultOffloader) -> None:
    """Run a proxy on stdin and stdout for `server`, until stdin ends.

    Args:
        server: the command that starts the server, or the connection to one, as `url_upstream` returns.
        results: what is offloaded, and where to.

    Raises:
        ConfigError: the command cannot be started.
    """
    # Nothing else can stop the thread that waits for a line from stdin.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    upstream = server if callable(server) else command_upstream(server)
    # The writer to stdout ends only when its stream is closed.
    async with upstream() as inner, stdio_server() as outer, outer[1]:
        await Proxy(results).run(outer, inner)


class Proxy:
    """Proxy between one client and one server; its own tools and resources read the session of `results`.

    `has_server` is whether the connection to the server is open.
    """

    def __init__(self, results: ResultOffloader) -> None:
        self._results = results
        self._answers = ContextAnswers(results.offloader)
        self._pending: dict[Any, Any] = {}
        self._version = ""
        self._headers = RequestHeaders()
        self.has_server = True
        self._to_client: Any = None
        self._to_server: Any = None
        self._tasks: Any = None

    async def run(self, client: Streams, server: Streams) -> None:
        """Relay until the client's messages end; each pair is the read and write stream of a transport."""
        self._to_client, self._to_server = client[1], server[1]
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._relay_server, server[0])
            async for message in _messages_of(client[0]):
                await self._from_client(message)
            self._tasks.cancel_scope.cancel()

    async def _from_client(self, message: Any) -> None:
        if not isinstance(message, JSONRPCRequest):
            self._forget_cancelled(message)
            await self._pass_on(message)
            return
        answer = self._own_answer(message)
        if answer is not None:
            self._tasks.start_soon(self._answer, message, answer)
            return
        self._pending[message.id] = message
        is_sent = await self._pass_on(_for_server(message))
        # When the server exited during the send, the request may have been answered already.
        if not is_sent and self._pending.pop(message.id, None) is not None:
            await self._answer_alone(message)

    def _forget_cancelled(self, message: Any) -> None:
        """Expect no response to a request that the client cancelled."""
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            request_id = (message.params or {}).get("requestId")
            if isinstance(request_id, int | str):
                self._pending.pop(request_id, None)

    async def _pass_on(self, message: Any) -> bool:
        """Send a message to the wrapped server; return whether the server is running."""
        if self.has_server:
            own = _own_version(message)
            headers = self._headers.of(message, own or self._version, is_modern=own is not None)
            try:
                await self._to_server.send(SessionMessage(message, ClientMessageMetadata(headers=headers)))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.has_server = False
        return self.has_server

    def _own_answer(self, request: Any) -> Callable[[], Json] | None:
        """Return the function that answers a request to the proxy itself, otherwise None."""
        answers, params = self._answers, request.params or {}
        match request.method, params:
            case "tools/call", {"name": str(name)} if name in RETRIEVAL_TOOLS:
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
        except Exception as error:  # noqa: BLE001 # the client waits for a response
            await self._fail(request, error_code(error), error_for_model(error))
        else:
            await self._reply(request, _stamped(request, result))

    def _own_page(self, cursor: str | None) -> Json:
        page = self._answers.list_resources(cursor)
        if "nextCursor" in page:
            page["nextCursor"] = _OWN_PAGES + page["nextCursor"]
        return page

    async def _relay_server(self, stream: Any) -> None:
        async for message in _messages_of(stream):
            await self._from_server(message)
        self.has_server = False
        _log.warning("%s", _EXITED)
        pending, self._pending = self._pending, {}
        for request in pending.values():
            await self._answer_alone(request)

    async def _from_server(self, message: Any) -> None:
        is_response = isinstance(message, JSONRPCResponse | JSONRPCError)
        request = self._pending.pop(message.id, None) if is_response else None
        result = None if request is None else _result_of(request, message)
        if request is not None and request.method == "tools/call" and isinstance(message, JSONRPCError):
            self._tasks.start_soon(self._fail_in_thread, request, message)
        elif request is None or result is None:
            await self._to_client.send(SessionMessage(message, self._related(message)))
        elif request.method in ("tools/call", "resources/list"):
            # The store may be slow, and other messages need not wait for it.
            self._tasks.start_soon(self._reply_in_thread, request, result)
        else:
            await self._reply(request, self._for_client(request, result))

    def _related(self, message: Any) -> ServerMessageMetadata | None:
        """Return the pending request on whose response an HTTP client gets a message of the server.

        A program does not say which request a question of it belongs to; the latest one is as good, and a
        client may listen to no other connection.
        """
        related = None
        if isinstance(message, JSONRPCRequest):
            related = next(reversed(self._pending), None)
        elif getattr(message, "method", "") == "notifications/progress":
            token = (message.params or {}).get("progressToken")
            tokens = ((name, _meta_of(each).get("progressToken")) for name, each in self._pending.items())
            related = next((name for name, each in tokens if each == token), None)
        return None if related is None else ServerMessageMetadata(related_request_id=related)

    async def _reply_in_thread(self, request: Any, result: Json) -> None:
        await self._reply(request, await in_thread(self._for_client, request, result))

    async def _fail_in_thread(self, request: Any, message: Any) -> None:
        text = await in_thread(self._error_for_client, request, message.error.message)
        error = message.error.model_copy(update={"message": text})
        await self._to_client.send(SessionMessage(message.model_copy(update={"error": error})))

    def _error_for_client(self, request: Any, text: str) -> str:
        try:
            return self._results.error_text(text, self._call_of(request))
        except Exception as error:  # noqa: BLE001 # a store or a hook may raise anything
            _log.warning("an error of a tool passes unchanged: %s", type(error).__name__)
            return text

    def _call_of(self, request: Any) -> ToolCall:
        params = request.params
        call_id = _meta(request, _CALL_ID)
        return ToolCall(params["name"], call_id, self._has_links(request), params.get("arguments"))

    def _for_client(self, request: Any, result: Json) -> Json:
        """Return a result for the client, unchanged if its form is unknown."""
        try:
            match request.method:
                case "initialize" | "server/discover":
                    return self._greeting(result)
                case "tools/call":
                    return self._results.offload(result, self._call_of(request))
                case "tools/list":
                    for tool in result["tools"]:
                        self._headers.note(tool)
                    tools = [self._results.note(_tool_for_client(tool)) for tool in result["tools"]]
                    return _extended({**result, "tools": tools}, {"tools": self._answers.tools})
                case "resources/list":
                    return result if result.get("nextCursor") else _extended(result, self._own_page(None))
                case "resources/templates/list":
                    return _extended(result, {"resourceTemplates": [TEMPLATE]})
        except Exception as error:  # noqa: BLE001 # other servers may send anything
            _log.warning("a result of %s passes unchanged: %s", request.method, type(error).__name__)
        return result

    def _greeting(self, result: Json) -> Json:
        version = result.get("protocolVersion")
        self._version = version if isinstance(version, str) else ""
        capabilities = {"tools": {}, "resources": {}, **result.get("capabilities", {})}
        texts = [text for text in (result.get("instructions"), self._answers.instructions) if text]
        return {**result, "capabilities": capabilities, "instructions": "\n\n".join(texts)}

    def _has_links(self, request: Any) -> bool:
        return (_own_version(request) or self._version) >= FIRST_WITH_LINKS

    async def _answer_alone(self, request: Any) -> None:
        """Answer for a server that exited: lists contain only the proxy's entries, other requests fail."""
        if request.method in _LISTS:
            await self._reply_in_thread(request, _empty_list(request))
        else:
            await self._fail(request)

    async def _reply(self, request: Any, result: Json) -> None:
        await self._to_client.send(
            SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result))
        )

    async def _fail(self, request: Any, code: int = -32000, reason: str = _EXITED) -> None:
        """Answer a failed request: with a tool result for the model, otherwise with an error."""
        if request.method == "tools/call":
            content = [{"type": "text", "text": f"Error: {reason}"}]
            await self._reply(request, _stamped(request, {"content": content, "isError": True}))
            return
        error = ErrorData(code=code, message=reason)
        await self._to_client.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))


async def _messages_of(stream: Any) -> AsyncIterator[Any]:
    """Yield the messages of a stream; log and drop invalid lines."""
    try:
        async for item in stream:
            if isinstance(item, Exception):
                _log.warning("dropped a line that is not a message: %s", type(item).__name__)
            else:
                yield item.message
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


def _result_of(request: Any, response: Any) -> Json | None:
    """Return the result of a response: an empty list if the server does not support the list."""
    if isinstance(response, JSONRPCResponse):
        result: Json = response.result
        return result
    if response.error.code == types.METHOD_NOT_FOUND and request.method in _LISTS:
        return _empty_list(request)
    return None


def _empty_list(request: Any) -> Json:
    return _stamped(request, {_LISTS[request.method]: []})


def _for_server(request: Any) -> Any:
    """Return a request with the wrapped server's own name of a tool."""
    name = (request.params or {}).get("name")
    if request.method != "tools/call" or not isinstance(name, str) or not _RESERVED.fullmatch(name):
        return request
    return request.model_copy(update={"params": {**request.params, "name": name.removeprefix(_INNER)}})


def _tool_for_client(tool: Json) -> Json:
    """Return a tool of the wrapped server for the client, renamed if its name is that of a retrieval tool."""
    return {**tool, "name": _INNER + tool["name"]} if _RESERVED.fullmatch(tool["name"]) else tool


def _extended(result: Json, added: Json) -> Json:
    """Return a list with the entries `added` after the last page of the wrapped server."""
    if result.get("nextCursor"):
        return result
    # The added entries may change with every call, and are for this client only.
    fresh = _UNCACHED if "ttlMs" in result else {}
    joined = {k: [*result[k], *v] if isinstance(v, list) else v for k, v in added.items()}
    return {**result, **joined, **fresh}


def _own_version(request: Any) -> str | None:
    """Return the protocol revision in a request; requests of 2026 and later have one."""
    return _meta(request, types.PROTOCOL_VERSION_META_KEY)


def _meta(request: Any, key: str) -> str | None:
    value = _meta_of(request).get(key)
    return value if isinstance(value, str) else None


def _meta_of(request: Any) -> Json:
    meta = (getattr(request, "params", None) or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def _stamped(request: Any, result: Json) -> Json:
    """Return a result of the proxy with the fields that the request's protocol revision requires."""
    if _own_version(request) is None:
        return result
    is_list = request.method != "tools/call"
    return {"resultType": "complete", **(_UNCACHED if is_list else {}), **result}
