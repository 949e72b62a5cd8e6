"""Tool results of a wrapped server, with their large parts offloaded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

from offload.base.text import encode_text
from offload.engine.policy import ItemFacts, OffloadPolicy, Rule, policy_of
from offload.engine.policy.policy import with_rules
from offload.engine.settings.options import StoreArguments
from offload.engine.sink import Sink
from offload.integrations.mcp._context import Json, link
from offload.messages.calls import main_argument
from offload.offloader import Offloader
from offload.storage.store import OffloadStore

_log = logging.getLogger("offload")

# The only field of the object that replaces offloaded structured content.
_OFFLOADED = "offloaded"
_OFFLOADED_SCHEMA: Json = {
    "type": "string",
    "description": "Replaces all other fields of a large result: description, excerpt, and how to read it.",
}

# Keywords that restrict no values, and keywords about members and items.
_ANNOTATIONS = {
    "$comment",
    "$id",
    "$schema",
    "default",
    "deprecated",
    "description",
    "examples",
    "title",
    "type",
}
_MEMBERS = {
    "$defs",
    "additionalProperties",
    "definitions",
    "properties",
    "required",
    "unevaluatedProperties",
}
_ITEMS = {"items", "maxItems", "minItems"}
_json = partial(json.dumps, ensure_ascii=False)


class ToolCall(NamedTuple):
    """The tool call of a result: the client's name of the tool, and the model's id of the call or None."""

    tool: str
    id: str | None
    has_links: bool
    arguments: Any = None


class ResultOffloader:
    """Offloads the large parts of tool results into one session.

    A placeholder and a link to `ctx://ID` replace a large text, embedded resource and, on request, image or
    audio. Blocks that are large only together are offloaded as one item. In large structured content, long
    strings are replaced if the output schema requires nothing but strings and the rest is small. Otherwise
    one object with the placeholder replaces all of it; the schemas for the client allow that. Errors are
    kept up to the policy's ceiling, parts that cannot be stored at any size.

    Args:
        store: the store.
        session: name of the session.
        min_tokens: threshold of results that no rule of `policy.tools` matches; it replaces the policy's.
        exclude: globs of tools whose results are kept, in addition to the policy's.
        has_images: offload images and audio too; the model then cannot see them.
        hides_schemas: declare no output schemas; of a large structured result only the texts remain.
        options: options of `Offloader`. Its policy decides once on each result, before the client gets it:
            a rule with `after_replies` or `keep_recent` keeps results in full.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        *,
        min_tokens: int | None = None,
        exclude: Sequence[str] = (),
        has_images: bool = False,
        hides_schemas: bool = False,
        **options: Unpack[StoreArguments],
    ) -> None:
        options["policy"] = _for_results(policy_of(options.get("policy")), min_tokens, exclude)
        self.offloader: Offloader = Offloader(store, session=session, **options)
        bare = {"preview_chars": 0}
        options["policy"] = with_rules(self.offloader.policy, lambda rule: rule.model_copy(update=bare))
        self._blobs = Offloader(store, session=session, **options)
        self._has_images = has_images
        self._hides_schemas = hides_schemas
        self._schemas: dict[str, Json | None] = {}

    def note(self, tool: Json) -> Json:
        """Remember the output schema of a listed tool, and return the tool for the client.

        The returned schema also allows the object that replaces a large result; a schema of an unsupported
        form is removed.
        """
        schema = tool.get("outputSchema")
        loosened = None if self._hides_schemas else _with_offloaded(schema)
        self._schemas[tool["name"]] = schema if loosened is not None else None
        rest = {k: v for k, v in tool.items() if k != "outputSchema"}
        return rest if loosened is None else {**rest, "outputSchema": loosened}

    def offload(self, result: Json, call: ToolCall) -> Json:
        """Return `result` with its large parts replaced; on a failure, or without large parts, `result`."""
        is_final = result.get("resultType", "complete") == "complete"
        if not is_final or not isinstance(result.get("content", []), list):
            return result
        try:
            if result.get("isError") and not self._is_above_ceiling(_texts_of(result)):
                return result
            return self._offload(result, call)
        except Exception as error:  # noqa: BLE001 # other servers may send anything
            # Without the error's text, which may quote the result.
            _log.warning("a result of %s is kept in full: %s", call.tool, type(error).__name__)
            return result

    def error_text(self, text: str, call: ToolCall) -> str:
        """Return the text of an error that the client gets in place of a result, or its placeholder."""
        if not self._is_above_ceiling([text]):
            return text
        return _offload_text(self.offloader, text, call).placeholder

    def _is_above_ceiling(self, texts: Iterable[str]) -> bool:
        ceiling = self.offloader.policy.max_view_tokens
        return ceiling is not None and sum(map(self.offloader.options.count_tokens, texts)) > ceiling

    def _offload(self, result: Json, call: ToolCall) -> Json:
        content = result.get("content", [])
        parts = [_ResultBlock(block, self._block(block, call)) for block in content]
        joined = self._joined(parts, call)
        changed = result if joined == content else {**result, "content": joined}
        return self._structured(changed, call, parts) if "structuredContent" in result else changed

    def _block(self, block: Json, call: ToolCall) -> list[Json]:
        match block:
            case {"type": "text", "text": str(text)}:
                return _replaced(block, self.offloader, text, call)
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text), **rest}}:
                media_type = rest.get("mimeType", "text/plain")
                return _replaced(block, self.offloader, text, call, title=uri, mimeType=media_type)
            case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob), **rest}}:
                return self._blob(block, blob, rest.get("mimeType"), call, title=uri)
            case {"type": "image" | "audio", "data": str(data)} if self._has_images:
                return self._blob(block, data, block.get("mimeType"), call)
        return [block]

    def _blob(self, block: Json, blob: str, media_type: object, call: ToolCall, **more: Any) -> list[Json]:
        media_type = media_type if isinstance(media_type, str) else "application/octet-stream"
        text = f"data:{media_type};base64,{blob}"
        return _replaced(block, self._blobs, text, call, mimeType=media_type, **more)

    def _joined(self, parts: Sequence[_ResultBlock], call: ToolCall) -> list[Json]:
        """Return the blocks of all parts, with one placeholder for the kept parts if they are large."""
        kept = [part for part in parts if part.is_kept]
        sink = _offload_text(self.offloader, "\n".join(_line(part.block) for part in kept), call)
        if sink.info is None:
            return [block for part in parts for block in part.replacement]
        blocks: list[Json] = []
        for part in parts:
            if not part.is_kept:
                blocks += part.replacement
            elif part is kept[0]:
                blocks += [{"type": "text", "text": sink.placeholder}, *_link(sink, call)]
        return blocks

    def _structured(self, result: Json, call: ToolCall, parts: Sequence[_ResultBlock]) -> Json:
        """Return `result`, whose texts are replaced as in `parts`, with large structured content replaced."""
        value, content = result["structuredContent"], result.get("content", [])
        if not self._is_large(value, call.tool):
            return result
        kept = _with_strings_replaced(
            value,
            self._schemas.get(call.tool),
            lambda text: _offload_text(self.offloader, text, call).placeholder,
        )
        if not self._is_large(kept, call.tool):
            return {**result, "structuredContent": kept}
        same = next((part for part in parts if not part.is_kept and _is_json_of(part.block, value)), None)
        blocks = same.replacement if same else self._block({"type": "text", "text": _json(value)}, call)
        if blocks[0]["text"] == _json(value):
            return result
        new = [] if same else blocks
        # The client may have a schema of the tool, possibly from an earlier listing.
        if not self._hides_schemas and self._schemas.get(call.tool, {}) is not None:
            replacement = {_OFFLOADED: blocks[0]["text"]}
            return {**result, "content": [*content, *new[1:]], "structuredContent": replacement}
        rest = {k: v for k, v in result.items() if k != "structuredContent"}
        return {**rest, "content": [*content, *new]}

    def _is_large(self, value: Any, tool: str) -> bool:
        text = _json(value)
        size = len(text), len(encode_text(text)), self.offloader.options.count_tokens(text)
        facts = ItemFacts(0, None, "tool_result", tool, None, *size)
        return self.offloader.policy.decide(facts, file_readers="offload").action == "offload"


def _for_results(policy: OffloadPolicy, min_tokens: int | None, exclude: Sequence[str]) -> OffloadPolicy:
    """Return `policy` for single results, which have no later turn, with the caller's changes."""
    changes: Json = {"cost_plan": "none", "exclude_tools": (*policy.exclude_tools, *exclude)}
    if min_tokens is not None:
        rule = policy.types["tool_result"]
        rule = Rule(min_tokens=min_tokens, preview_chars=rule.preview_chars, ttl=rule.ttl)
        changes["types"] = {**policy.types, "tool_result": rule}
        # A higher threshold implies a model with a larger context window.
        changes["max_view_tokens"] = policy.max_view_tokens and max(min_tokens, policy.max_view_tokens)
    return policy.model_copy(update=changes)


class _ResultBlock(NamedTuple):
    """A block of a result, and the blocks that replace it: itself if it is kept."""

    block: Any
    replacement: list[Any]

    @property
    def is_kept(self) -> bool:
        """Return whether the block is kept and is neither an image nor audio."""
        is_media = isinstance(self.block, dict) and self.block.get("type") in ("image", "audio")
        return self.replacement == [self.block] and not is_media


def _offload_text(offloader: Offloader, text: str, call: ToolCall) -> Sink:
    """Offload one text if it is large; a kept text has no record."""
    title = main_argument(call.tool, call.arguments)
    with offloader.open_sink(tool_name=call.tool, tool_use_id=call.id, title=title) as sink:
        sink.write(text)
    return sink


def _replaced(block: Json, offloader: Offloader, text: str, call: ToolCall, **more: Any) -> list[Json]:
    """Return `block`, or the placeholder of its text and a link with `more` fields if the text is large."""
    sink = _offload_text(offloader, text, call)
    if sink.info is None:
        return [block]
    other_fields = block if block["type"] == "text" else {"type": "text"}
    return [{**other_fields, "text": sink.placeholder}, *_link(sink, call, **more)]


def _link(sink: Sink, call: ToolCall, **more: Any) -> Iterator[Json]:
    if call.has_links and sink.info is not None:
        yield link(sink.info.ref, **{"mimeType": "text/plain", **more})


def _line(block: Any) -> str:
    """Return a block as text: the text of a plain text block, the JSON of any other."""
    is_text = isinstance(block, dict) and block.keys() == {"type", "text"}
    return str(block["text"]) if is_text else _json(block)


def _texts_of(result: Json) -> Iterator[str]:
    """Yield the texts of a result, those of images and sound excepted."""
    for block in result.get("content", []):
        if not (isinstance(block, dict) and block.get("type") in ("image", "audio")):
            yield _line(block)
    if "structuredContent" in result:
        yield _json(result["structuredContent"])


def _is_json_of(block: Json, value: Any) -> bool:
    try:
        return bool(json.loads(block["text"]) == value)
    except (KeyError, TypeError, ValueError):
        return False


# Output schemas. They are untrusted data: their patterns may never finish, their references may point
# anywhere. So nothing is validated. A schema of a plain form is loosened for the client, and a string is
# replaced only if its schema requires nothing but a string.


def _with_offloaded(schema: object) -> Json | None:
    """Return the output schema of a tool, loosened to allow the replacement; None for an unsupported form."""
    if not isinstance(schema, dict) or not _is_plain(schema, "object", _MEMBERS):
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _OFFLOADED in properties:
        return None
    loosened = {k: v for k, v in schema.items() if k != "required"}
    choice = {"anyOf": [{"required": required}, {"required": [_OFFLOADED]}]} if required else {}
    return {**loosened, "properties": {**properties, _OFFLOADED: _OFFLOADED_SCHEMA}, **choice}


def _with_strings_replaced(value: Any, schema: Any, replace: Callable[[str], str]) -> Any:
    """Return `value` with the strings replaced whose schema requires nothing but a string."""
    match schema, value:
        case {"type": "string"}, str() if _is_plain(schema, "string", set()):
            return replace(value)
        case {"properties": dict(properties)}, dict() if _is_plain(schema, "object", _MEMBERS):
            return {k: _with_strings_replaced(v, properties.get(k), replace) for k, v in value.items()}
        case {"items": items}, list() if _is_plain(schema, "array", _ITEMS):
            return [_with_strings_replaced(v, items, replace) for v in value]
    return value


def _is_plain(schema: Json, kind: str, keywords: set[str]) -> bool:
    used = {name for name in schema if not name.startswith("x-")}
    return schema.get("type") == kind and used <= _ANNOTATIONS | keywords
