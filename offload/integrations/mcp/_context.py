"""What a client of the protocol may ask of one session, answered as plain JSON: tools and resources."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from offload.errors import ConfigError, NotFoundError
from offload.offloader import Offloader
from offload.placeholder import tool_label
from offload.record import RecordInfo, decode_text, encodable

Json = dict[str, Any]

SCHEME = "ctx://"
TEMPLATE: Json = {
    "uriTemplate": f"{SCHEME}{{id}}",
    "name": "stored item",
    "description": "An item that was taken out of the conversation, whole; context_read reads it in parts.",
}
# A client holds a resource in memory, and may put it before its model.
MAX_RESOURCE_BYTES = 8 * 1024 * 1024

_URI = re.compile(rf"{SCHEME}([a-z]{{10,20}})", re.ASCII)
_DATA_URL = re.compile(r"data:([\w.+-]{1,60}/[\w.+-]{1,60});base64,", re.ASCII)
_PAGE = 100
# They answer of one item, which their argument `id` names.
_ONE_ITEM_TOOLS = ("context_read", "context_tail")


class ContextAnswers:
    """Answers of one session. An id is checked here, whoever passes it on (rules R6 and R7).

    Args:
        offloader: holds the session.
    """

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader

    @property
    def instructions(self) -> str:
        """What a model is told of placeholders."""
        return self._offloader.prompt()

    def tools(self) -> list[Json]:
        """Return the four tools as `tools/list` shows them."""
        return self._offloader.tools.definitions("mcp")

    def call(self, name: str, arguments: Mapping[str, Any] | None, *, has_links: bool) -> Json:
        """Return the result of `tools/call`; what a model gets wrong is an error that says what is right.

        Args:
            name: the tool.
            arguments: as the client sent them.
            has_links: whether the client knows links to resources.
        """
        answer = self._offloader.tools.call(name, arguments)
        is_error = answer.startswith("Error: ")
        content: list[Json] = [{"type": "text", "text": answer}]
        if has_links and not is_error and name in _ONE_ITEM_TOOLS and arguments:
            content.append(link(arguments["id"]))
        return {"content": content, "isError": is_error}

    def list_resources(self, cursor: str | None) -> Json:
        """Return a page of `resources/list`, newest first.

        Args:
            cursor: the id after which the page starts.

        Raises:
            ConfigError: `cursor` is no id of this session.
            StoreError: the session could not be listed.
        """
        infos = self._offloader.records()[::-1]
        refs = [info.ref for info in infos]
        if cursor is not None and cursor not in refs:
            raise ConfigError(f"cursor {cursor[:40]!r} names nothing here; list again from the beginning")
        start = 0 if cursor is None else refs.index(cursor) + 1
        page: Json = {"resources": [_resource(info) for info in infos[start : start + _PAGE]]}
        if start + _PAGE < len(infos):
            page["nextCursor"] = refs[start + _PAGE - 1]
        return page

    def read_resource(self, uri: str) -> Json:
        """Return the result of `resources/read`: the whole content of a record.

        Raises:
            NotFoundError: `uri` names no record of this session.
            CorruptError: the record is damaged.
            ConfigError: it has more than 8 MiB.
            StoreError: the store could not be read.
        """
        match = _URI.fullmatch(uri)
        if match is None:
            raise NotFoundError(f"no resource {uri[:60]!r}: one is {SCHEME} and the id in a placeholder")
        text = decode_text(self._content(match[1]))
        return {"contents": [{"uri": uri, **_as_blob_or_text(text)}]}

    def _content(self, ref: str) -> bytes:
        held = bytearray()
        for chunk in self._offloader.content(ref):
            held += chunk
            if len(held) > MAX_RESOURCE_BYTES:
                raise ConfigError(
                    f"{SCHEME}{ref} has more than the {MAX_RESOURCE_BYTES} bytes that a resource may have; "
                    f'read it in parts: context_read(id="{ref}", offset=0)'
                )
        return bytes(held)


def link(ref: str, **more: Any) -> Json:
    """Return the content block that links to a record; `more` are other fields of it.

    It is meant for the user: to a model the text beside it says how to read.
    """
    return {
        "type": "resource_link",
        "uri": f"{SCHEME}{ref}",
        "name": ref,
        "annotations": {"audience": ["user"]},
        **more,
    }


def data_url(media_type: str, blob: str) -> str:
    """Return the text under which binary content is stored: `read_resource` gives it back as a blob."""
    return f"data:{media_type};base64,{blob}"


def _resource(info: RecordInfo) -> Json:
    tool = f" of {tool_label(info.tool_name)}" if info.tool_name else ""
    title = f"{info.item_type}{tool}, {info.chars} characters"
    return {"uri": f"{SCHEME}{info.ref}", "name": info.ref, "title": title}


def _as_blob_or_text(text: str) -> Json:
    match = _DATA_URL.match(text)
    if match is not None and _is_base64(text[match.end() :]):
        return {"mimeType": match[1], "blob": text[match.end() :]}
    return {"mimeType": "text/plain", "text": encodable(text)}


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
