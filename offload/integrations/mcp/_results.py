"""What a tool of another server returned, with its large parts taken out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from offload.engine.sink import Taken
from offload.integrations.mcp._context import Json, data_url, link
from offload.integrations.mcp._schemas import STAND_IN, with_stand_in, with_strings_replaced
from offload.offloader import Offloader
from offload.policy import MAX_VIEW_TOKENS, OffloadPolicy, Rule
from offload.store import OffloadStore
from offload.tokens import estimate_tokens

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call that a result answers.

    Attributes:
        tool: name of the tool, as the client knows it.
        id: the model's id of the call where the client told it, for `Offloader.restore`.
        has_links: whether the client knows links to resources.
    """

    tool: str
    id: str | None
    has_links: bool


class ResultOffloader:
    """Offloads the large parts of tools' results into one session.

    A text leaves for its placeholder and a link to `ctx://ID`. So do embedded resources, and on demand
    images and audio; blocks that are large together leave as one. Large structured content leaves too: its
    long strings, where the tool's output schema says no more of them than that they are strings and the rest
    is small; else the whole of it, for an object with the placeholder alone, which the schemas that a client
    is shown allow. Errors stay, and so does everything that cannot be stored.

    Args:
        store: where records go.
        session: the session they go to.
        min_tokens: from how many tokens on a part leaves.
        exclude: globs of tools whose results always stay.
        has_images: whether images and audio leave too: a model cannot see them then, a client can.
        hides_schemas: whether output schemas are not shown to the client at all.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        *,
        min_tokens: int = 1500,
        exclude: Sequence[str] = (),
        has_images: bool = False,
        hides_schemas: bool = False,
    ) -> None:
        def open_session(**more: Any) -> Offloader:
            rule = Rule(min_tokens=min_tokens, **more)
            policy = OffloadPolicy(
                types={"tool_result": rule},
                exclude_tools=tuple(exclude),
                # Who asks for a higher threshold has a window for it.
                max_view_tokens=max(min_tokens, MAX_VIEW_TOKENS),
            )
            return Offloader(store, session=session, policy=policy)

        self.offloader = open_session()
        self._blobs = open_session(preview_chars=0)
        self._min_tokens = min_tokens
        self._has_images = has_images
        self._hides_schemas = hides_schemas
        self._schemas: dict[str, Json | None] = {}

    def note(self, tool: Json) -> Json:
        """Remember the output schema of a tool that is listed, and return how the client sees the tool.

        Its schema also allows the object that stands for a large result; a schema of a form to which that
        cannot be added is not shown.
        """
        schema = tool.get("outputSchema")
        shown = None if self._hides_schemas else with_stand_in(schema)
        self._schemas[tool["name"]] = schema if shown is not None else None
        rest = {k: v for k, v in tool.items() if k != "outputSchema"}
        return rest if shown is None else {**rest, "outputSchema": shown}

    def offload(self, result: Json, call: ToolCall) -> Json:
        """Return `result` with its large parts replaced; the same object if none left or anything failed."""
        is_final = result.get("resultType", "complete") == "complete"
        if result.get("isError") or not is_final or not isinstance(result.get("content", []), list):
            return result
        try:
            return self._offload(result, call)
        except Exception as error:  # noqa: BLE001 # what other servers send may be anything (rule R2)
            # Its text may quote the result, which is nobody else's to read.
            _log.warning("a result of %s stays whole: %s", call.tool, type(error).__name__)
            return result

    def _offload(self, result: Json, call: ToolCall) -> Json:
        content = result.get("content", [])
        parts = [_Part(block, self._block(block, call)) for block in content]
        shown = self._joined(parts, call)
        changed = result if shown == content else {**result, "content": shown}
        return self._structured(changed, call, parts) if "structuredContent" in result else changed

    def _block(self, block: Json, call: ToolCall) -> list[Json]:
        """Return what stands for one block of content."""
        match block:
            case {"type": "text", "text": str(text)}:
                taken = _take(self.offloader, text, call)
                return [block] if taken.info is None else [{**block, "text": taken.text}, *_link(taken, call)]
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text), **rest}}:
                taken = _take(self.offloader, text, call)
                return _replaced(block, taken, call, title=uri, mimeType=rest.get("mimeType", "text/plain"))
            case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob), **rest}}:
                return self._blob(block, blob, rest.get("mimeType"), call, title=uri)
            case {"type": "image" | "audio", "data": str(data)} if self._has_images:
                return self._blob(block, data, block.get("mimeType"), call)
        return [block]

    def _blob(self, block: Json, blob: str, media_type: object, call: ToolCall, **more: Any) -> list[Json]:
        media_type = media_type if isinstance(media_type, str) else "application/octet-stream"
        taken = _take(self._blobs, data_url(media_type, blob), call)
        return _replaced(block, taken, call, mimeType=media_type, **more)

    def _joined(self, parts: Sequence[_Part], call: ToolCall) -> list[Json]:
        """Return what is shown of all blocks: one placeholder of those that stayed, if they are large."""
        stayed = [part for part in parts if part.stays]
        taken = _take(self.offloader, "\n".join(_line(part.block) for part in stayed), call)
        if taken.info is None:
            return [shown for part in parts for shown in part.shown]
        joined = [{"type": "text", "text": taken.text}, *_link(taken, call)]
        first = parts.index(stayed[0])
        before = [shown for part in parts[:first] for shown in part.shown]
        return [*before, *joined, *(s for part in parts[first:] if not part.stays for s in part.shown)]

    def _structured(self, result: Json, call: ToolCall, parts: Sequence[_Part]) -> Json:
        """Return `result` with what is large in its structured content replaced.

        Args:
            result: its texts are replaced already.
            call: the call it answers.
            parts: its content as it came, and what is shown of it.
        """
        value, content = result["structuredContent"], result.get("content", [])
        if not self._is_large(value):
            return result
        kept = with_strings_replaced(
            value, self._schemas.get(call.tool), lambda text: _take(self.offloader, text, call).text
        )
        if not self._is_large(kept):
            return {**result, "structuredContent": kept}
        said = next((part for part in parts if not part.stays and _is_json_of(part.block, value)), None)
        placed = said.shown if said else self._block({"type": "text", "text": _json(value)}, call)
        if placed[0]["text"] == _json(value):
            return result
        new = [] if said else placed
        if self._needs_structured(call):
            stand_in = {STAND_IN: placed[0]["text"]}
            return {**result, "content": [*content, *new[1:]], "structuredContent": stand_in}
        rest = {k: v for k, v in result.items() if k != "structuredContent"}
        return {**rest, "content": [*content, *new]}

    def _needs_structured(self, call: ToolCall) -> bool:
        """Tell whether the client may have a schema of the tool: also one that was listed to it elsewhere."""
        return not self._hides_schemas and self._schemas.get(call.tool, {}) is not None

    def _is_large(self, value: Any) -> bool:
        return estimate_tokens(_json(value)) >= self._min_tokens


@dataclass(frozen=True, slots=True)
class _Part:
    """A block of content as it came, and what is shown of it."""

    block: Any
    shown: list[Any]

    @property
    def stays(self) -> bool:
        """Whether it is shown as it came, and is no picture or sound, which are no text."""
        is_media = isinstance(self.block, dict) and self.block.get("type") in ("image", "audio")
        return self.shown == [self.block] and not is_media


def _take(offloader: Offloader, text: str, call: ToolCall) -> Taken:
    """Offload one text if it is large; of what stays the record is None."""
    with offloader.open_sink(tool_name=call.tool, tool_use_id=call.id) as sink:
        sink.write(text)
    return Taken(sink.placeholder, sink.info, sink.error)


def _replaced(block: Json, taken: Taken, call: ToolCall, **more: Any) -> list[Json]:
    if taken.info is None:
        return [block]
    return [{"type": "text", "text": taken.text}, *_link(taken, call, **more)]


def _link(taken: Taken, call: ToolCall, **more: Any) -> Iterator[Json]:
    if call.has_links and taken.info is not None:
        yield link(taken.info.ref, **{"mimeType": "text/plain", **more})


def _line(block: Any) -> str:
    """Return a block as a line among others: the text alone of one that is nothing else."""
    is_text = isinstance(block, dict) and block.keys() == {"type", "text"}
    return str(block["text"]) if is_text else _json(block)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_json_of(block: Json, value: Any) -> bool:
    try:
        return bool(json.loads(block["text"]) == value)
    except (KeyError, TypeError, ValueError):
        return False
