"""Messages of the protocol on their way through the proxy, as pure functions."""

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

# A tool of the wrapped server with a name of ours is shown as inner_…, and one that is called that already
# gets one more: no two tools share a name, and nothing needs to be remembered.
_TAKEN = re.compile(rf"(inner_)*({'|'.join(TOOL_NAMES)})")
_INNER = "inner_"
# The field of each list that a server without the feature does not know.
LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


async def messages_of(stream: Any) -> AsyncIterator[Any]:
    """Yield the messages of a stream; what is none is noted and dropped."""
    try:
        async for item in stream:
            if isinstance(item, Exception):
                _log.warning("a line that is no message was dropped: %s", type(item).__name__)
            else:
                yield item.message
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


def result_of(request: Any, response: Any) -> Json | None:
    """Return the result of a response; to a list that the server does not know, the empty one."""
    if isinstance(response, JSONRPCResponse):
        result: Json = response.result
        return result
    if response.error.code == types.METHOD_NOT_FOUND and request.method in LISTS:
        return empty_list(request)
    return None


def empty_list(request: Any) -> Json:
    """Return the result of a request for a list that has nothing on it."""
    return stamped(request, {LISTS[request.method]: []})


def as_the_server_knows_it(request: Any) -> Any:
    """Return a request with the name of a tool as the wrapped server knows it."""
    name = (request.params or {}).get("name")
    if request.method != "tools/call" or not isinstance(name, str) or not _TAKEN.fullmatch(name):
        return request
    return request.model_copy(update={"params": {**request.params, "name": name.removeprefix(_INNER)}})


def shown_tool(tool: Json) -> Json:
    """Return a tool of the wrapped server as a client sees it: under another name if it has one of ours."""
    return {**tool, "name": _INNER + tool["name"]} if _TAKEN.fullmatch(tool["name"]) else tool


def extended(result: Json, ours: Json) -> Json:
    """Return a list with ours behind the last page of the wrapped server's."""
    if result.get("nextCursor"):
        return result
    # What is ours may change with every call, and is this client's alone.
    fresh = {"ttlMs": 0, "cacheScope": "private"} if "ttlMs" in result else {}
    joined = {k: [*result[k], *v] if isinstance(v, list) else v for k, v in ours.items()}
    return {**result, **joined, **fresh}


def own_version(request: Any) -> str | None:
    """Return the revision of the protocol that a request names itself, as those of 2026 and later do."""
    meta = (request.params or {}).get("_meta")
    version = meta.get(types.PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else None


def stamped(request: Any, result: Json) -> Json:
    """Return a result of ours with the fields that the request's revision of the protocol asks for."""
    if own_version(request) is None:
        return result
    is_list = request.method != "tools/call"
    return {"resultType": "complete", **({"ttlMs": 0, "cacheScope": "private"} if is_list else {}), **result}
