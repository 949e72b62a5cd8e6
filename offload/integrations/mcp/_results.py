"""What a tool of another server returned, with its large parts taken out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema.validators import validator_for
from referencing import Registry

from offload.integrations.mcp._context import Json, data_url, link
from offload.offloader import Offloader
from offload.policy import OffloadPolicy, Rule
from offload.sink import Taken
from offload.store import OffloadStore

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class Call:
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
    images and audio. Structured content follows the tool's output schema: where one is declared, large
    strings in it leave as long as the result conforms, and all else stays; where none is declared, it
    leaves whole. Errors stay, and so does everything that cannot be stored.

    Args:
        store: where records go.
        session: the session they go to.
        min_tokens: from how many tokens on a part leaves.
        exclude: globs of tools whose results always stay.
        has_images: whether images and audio leave too: a model cannot see them then, a client can.
        hides_schemas: whether output schemas are not shown to the client, so that structured content
            may leave whole.
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
            policy = OffloadPolicy(types={"tool_result": rule}, exclude_tools=tuple(exclude))
            return Offloader(store, session=session, policy=policy)

        self.offloader = open_session()
        self._blobs = open_session(preview_chars=0)
        self._has_images = has_images
        self._hides_schemas = hides_schemas
        self._schemas: dict[str, Any] = {}

    def note(self, tool: Json) -> Json:
        """Remember the output schema of a tool that is listed, and return how the client sees the tool."""
        shown = {k: v for k, v in tool.items() if k != "outputSchema"} if self._hides_schemas else tool
        self._schemas[tool["name"]] = shown.get("outputSchema")
        return shown

    def offload(self, result: Json, call: Call) -> Json:
        """Return `result` with its large parts replaced; the same object if none left or anything failed."""
        is_final = result.get("resultType", "complete") == "complete"
        if result.get("isError") or not is_final or not isinstance(result.get("content"), list):
            return result
        try:
            return self._offload(result, call)
        except Exception as error:  # noqa: BLE001 # what other servers send may be anything (rule R2)
            # Its text may quote the result, which is nobody else's to read.
            _log.warning("a result of %s stays whole: %s", call.tool, type(error).__name__)
            return result

    def _offload(self, result: Json, call: Call) -> Json:
        content = [shown for block in result["content"] for shown in self._block(block, call)]
        if content == result["content"]:
            content = self._joined(content, call)
        changed = {**result, "content": content}
        if "structuredContent" in result:
            changed = self._structured(changed, call, result["content"])
        return result if changed == result else changed

    def _block(self, block: Json, call: Call) -> list[Json]:
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

    def _blob(self, block: Json, blob: str, media_type: object, call: Call, **more: Any) -> list[Json]:
        media_type = media_type if isinstance(media_type, str) else "application/octet-stream"
        taken = _take(self._blobs, data_url(media_type, blob), call)
        return _replaced(block, taken, call, mimeType=media_type, **more)

    def _joined(self, content: list[Json], call: Call) -> list[Json]:
        """Return one placeholder for many texts that are large together, each on lines of its own."""
        if len(content) < 2 or any(set(block) != {"type", "text"} for block in content):  # noqa: PLR2004 # one is no many
            return content
        taken = _take(self.offloader, "\n".join(block["text"] for block in content), call)
        return content if taken.info is None else [{"type": "text", "text": taken.text}, *_link(taken, call)]

    def _structured(self, result: Json, call: Call, original: list[Json]) -> Json:
        """Return `result` with what is large in its structured content replaced.

        Args:
            result: its texts are replaced already.
            call: the call it answers.
            original: its content as it came.
        """
        value = result["structuredContent"]
        if call.tool not in self._schemas:
            return result  # It may have a schema; the client would know.
        schema = self._schemas[call.tool]
        if schema is not None:
            shown = self._with_strings_replaced(value, call)
            return {**result, "structuredContent": shown} if _conforms(shown, schema) else result
        rest = {k: v for k, v in result.items() if k != "structuredContent"}
        if result["content"] != original and any(_is_json_of(block, value) for block in original):
            return rest  # A text said the same, and is stored.
        taken = _take(self.offloader, json.dumps(value, ensure_ascii=False), call)
        if taken.info is None:
            return result
        placed = {"type": "text", "text": taken.text}
        return {**rest, "content": [*result["content"], placed, *_link(taken, call)]}

    def _with_strings_replaced(self, value: Any, call: Call) -> Any:
        if isinstance(value, str):
            return _take(self.offloader, value, call).text
        if isinstance(value, dict):
            return {k: self._with_strings_replaced(v, call) for k, v in value.items()}
        if isinstance(value, list):
            return [self._with_strings_replaced(v, call) for v in value]
        return value


def _take(offloader: Offloader, text: str, call: Call) -> Taken:
    """Offload one text if it is large; of what stays the record is None."""
    with offloader.open_sink(tool_name=call.tool, tool_use_id=call.id) as sink:
        sink.write(text)
    return Taken(sink.placeholder, sink.info, sink.error)


def _replaced(block: Json, taken: Taken, call: Call, **more: Any) -> list[Json]:
    if taken.info is None:
        return [block]
    return [{"type": "text", "text": taken.text}, *_link(taken, call, **more)]


def _link(taken: Taken, call: Call, **more: Any) -> Iterator[Json]:
    if call.has_links and taken.info is not None:
        yield link(taken.info.ref, **{"mimeType": "text/plain", **more})


def _conforms(value: Any, schema: Json) -> bool:
    """Tell whether `value` is what `schema` allows; no schema is fetched from anywhere."""
    validator = validator_for(schema)(schema, registry=Registry())
    return bool(validator.is_valid(value))


def _is_json_of(block: Json, value: Any) -> bool:
    try:
        return bool(json.loads(block["text"]) == value)
    except (KeyError, TypeError, ValueError):
        return False
