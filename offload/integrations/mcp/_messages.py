"""Pure functions on the protocol messages that pass through the proxy."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp import types
from mcp.types.jsonrpc import JSONRPCResponse

from offload.integrations.mcp._context import Json
from offload.tools import TOOL_NAMES

_log = logging.getLogger("offload")

# A tool of the wrapped server that is named like a retrieval tool gets the prefix inner_, and one with that
# prefix gets another. So no two tools share a name, and the mapping needs no state.
_RESERVED = re.compile(rf"(inner_)*({'|'.join(TOOL_NAMES)})")
_INNER = "inner_"
_UNCACHED: Json = {"ttlMs": 0, "cacheScope": "private"}
# The result field of each list that a server may not support.
LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


async def messages_of(stream: Any) -> AsyncIterator[Any]:
    """Yield the messages of a stream; log and drop invalid lines."""
    try:
        async for item in stream:
            if isinstance(item, Exception):
                _log.warning("dropped a line that is not a message: %s", type(item).__name__)
            else:
                yield item.message
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


def result_of(request: Any, response: Any) -> Json | None:
    """Return the result of a response: an empty list if the server does not support the list."""
    if isinstance(response, JSONRPCResponse):
        result: Json = response.result
        return result
    if response.error.code == types.METHOD_NOT_FOUND and request.method in LISTS:
        return empty_list(request)
    return None


def empty_list(request: Any) -> Json:
    """Return an empty result for a list request."""
    return stamped(request, {LISTS[request.method]: []})


def for_server(request: Any) -> Any:
    """Return a request with the wrapped server's own name of a tool."""
    name = (request.params or {}).get("name")
    if request.method != "tools/call" or not isinstance(name, str) or not _RESERVED.fullmatch(name):
        return request
    return request.model_copy(update={"params": {**request.params, "name": name.removeprefix(_INNER)}})


def tool_for_client(tool: Json) -> Json:
    """Return a tool of the wrapped server for the client, renamed if its name is that of a retrieval tool."""
    return {**tool, "name": _INNER + tool["name"]} if _RESERVED.fullmatch(tool["name"]) else tool


def extended(result: Json, added: Json) -> Json:
    """Return a list with the entries `added` after the last page of the wrapped server."""
    if result.get("nextCursor"):
        return result
    # The added entries may change with every call, and are for this client only.
    fresh = _UNCACHED if "ttlMs" in result else {}
    joined = {k: [*result[k], *v] if isinstance(v, list) else v for k, v in added.items()}
    return {**result, **joined, **fresh}


def own_version(request: Any) -> str | None:
    """Return the protocol revision in a request; requests of 2026 and later have one."""
    meta = (request.params or {}).get("_meta")
    version = meta.get(types.PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else None


def stamped(request: Any, result: Json) -> Json:
    """Return a result of the proxy with the fields that the request's protocol revision requires."""
    if own_version(request) is None:
        return result
    is_list = request.method != "tools/call"
    return {"resultType": "complete", **(_UNCACHED if is_list else {}), **result}
