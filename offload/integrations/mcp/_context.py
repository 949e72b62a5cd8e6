"""Tools and resources of one session, as the plain JSON of protocol results."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from offload.base.text import decode_text, escape_surrogates
from offload.engine.placeholder.default import tool_label
from offload.errors import ConfigError, NotFoundError
from offload.integrations._sessions import is_error
from offload.offloader import Offloader
from offload.records.record import RecordInfo

Json = dict[str, Any]

SCHEME = "ctx://"
TEMPLATE: Json = {
    "uriTemplate": f"{SCHEME}{{id}}",
    "name": "stored item",
    "description": "A complete stored item; use context_read to read part of it.",
}
# A client keeps a resource in memory, and may send it to its model.
MAX_RESOURCE_BYTES = 8 * 1024 * 1024

# A record never changes, but it may be deleted.
_KEPT_MS = 3600 * 1000

_URI = re.compile(rf"{SCHEME}([a-z]{{10,20}})", re.ASCII)
_DATA_URL = re.compile(r"data:([\w.+-]{1,60}/[\w.+-]{1,60});base64,", re.ASCII)
_PAGE = 100
# Of other tools Claude Code sends only the names, so that a model could not call what a placeholder names.
_ALWAYS_LOADED = {"_meta": {"anthropic/alwaysLoad": True}}


class ContextAnswers:
    """Protocol results for one session. Ids are checked here for every caller."""

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self.instructions = offloader.prompt()
        self.tools: list[Json] = [{**tool, **_ALWAYS_LOADED} for tool in offloader.tools.definitions("mcp")]
        # They read the one item in their argument `id`.
        self._of_one_item = {"context_read", "context_tail"}

    def call(self, name: str, arguments: Mapping[str, Any] | None, *, has_links: bool) -> Json:
        """Return the result of `tools/call`, with a link to the item if the client supports links."""
        answer = self._offloader.tools.call(name, arguments)
        has_failed = is_error(answer)
        content: list[Json] = [{"type": "text", "text": answer}]
        if has_links and not has_failed and name in self._of_one_item and arguments:
            content.append(link(arguments["id"]))
        return {"content": content, "isError": has_failed}

    def list_resources(self, cursor: str | None) -> Json:
        """Return a page of `resources/list`, newest first, from after the id `cursor`.

        Raises `ConfigError` if that is not an id of this session, and `StoreError`.
        """
        infos = self._offloader.records()[::-1]
        refs = [info.ref for info in infos]
        if cursor is not None and cursor not in refs:
            raise ConfigError(f"invalid cursor {cursor[:40]!r}; list again from the start")
        start = 0 if cursor is None else refs.index(cursor) + 1
        page: Json = {"resources": [_resource(info) for info in infos[start : start + _PAGE]]}
        if start + _PAGE < len(infos):
            page["nextCursor"] = refs[start + _PAGE - 1]
        return page

    def read_resource(self, uri: str) -> Json:
        """Return the result of `resources/read`: the complete content of a record.

        Raises `ConfigError` if it is larger than 8 MiB, and the errors of `Offloader.content`.
        """
        match = _URI.fullmatch(uri)
        if match is None:
            raise NotFoundError(f"unknown resource {uri[:60]!r}; use {SCHEME} and an id from a placeholder")
        text = decode_text(self._content(match[1]))
        return {"contents": [{"uri": uri, **_as_blob_or_text(text)}], "ttlMs": _KEPT_MS}

    def _content(self, ref: str) -> bytes:
        content = bytearray()
        for chunk in self._offloader.content(ref):
            content += chunk
            if len(content) > MAX_RESOURCE_BYTES:
                raise ConfigError(
                    f"{SCHEME}{ref} is larger than {MAX_RESOURCE_BYTES // 2**20} MiB; "
                    f'read it in parts: context_read(id="{ref}", offset=0)'
                )
        return bytes(content)


def link(ref: str, **more: Any) -> Json:
    """Return a content block that links to a record, with `more` fields.

    The link is for the user; the text of the placeholder gives the model the call to make.
    """
    return {
        "type": "resource_link",
        "uri": f"{SCHEME}{ref}",
        "name": ref,
        "annotations": {"audience": ["user"]},
        **more,
    }


def _resource(info: RecordInfo) -> Json:
    tool = f" of {tool_label(info.tool_name)}" if info.tool_name else ""
    title = f"{info.item_type}{tool}, {info.chars} characters"
    return {"uri": f"{SCHEME}{info.ref}", "name": info.ref, "title": title}


def _as_blob_or_text(text: str) -> Json:
    if match := _DATA_URL.match(text):
        blob = text[match.end() :]
        with suppress(ValueError):
            base64.b64decode(blob, validate=True)
            return {"mimeType": match[1], "blob": blob}
    return {"mimeType": "text/plain", "text": escape_surrogates(text)}
