"""Gemini contents: roles user and model, parts that are told by the one field that is set.

Dicts in the spelling of the REST API (`functionResponse`) and of the SDK (`function_response`), and the
objects of google-genai. https://ai.google.dev/api/caching#Content
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from offload.messages._access import Path, blocks_of, get, string_or_none, text_of
from offload.messages._base import TEXT_TYPES, Block, Item, MessageAdapter, Scan, Shape
from offload.messages._json import ARGUMENTS, JsonObject
from offload.messages._media import Media, Place

_ROLES = {"model": "assistant", None: "user"}
_CALL = ("functionCall", "function_call")
_RESPONSE = ("functionResponse", "function_response")
_CONTINUES = ("willContinue", "will_continue")
# Of the model's own code and what became of it: holder and field.
_FIXED = (
    ("executableCode", "code"),
    ("executable_code", "code"),
    ("codeExecutionResult", "output"),
    ("code_execution_result", "output"),
)
# A response must be an object; what a function returned stands under `result` in the SDK's own calls.
_RESULT = JsonObject("result")
# Beside a response, in its own `parts`, no text may stand: what is there stays.
_MEDIA = Media(
    [
        Place(("inlineData", "data"), ("inlineData", "mimeType")),
        Place(("inline_data", "data"), ("inline_data", "mime_type")),
    ],
    {},
)


class GeminiAdapter(MessageAdapter):
    """Contents of the Gemini API."""

    name = "gemini"

    def claims(self, message: Any) -> bool:
        """Tell whether it has parts that name no type, as those of other formats do."""
        parts = get(message, "parts")
        return isinstance(parts, list) and all(
            get(part, "type") is None and get(part, "part_kind") is None for part in parts
        )

    def role(self, message: Any, where: str) -> str:  # noqa: ARG002 # a content may have no role
        """Return the role of `message`, "assistant" for what the model made."""
        role = get(message, "role")
        return _ROLES.get(role) or str(role)

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds."""
        scan = Scan()
        item_type = TEXT_TYPES.get(self.role(message, where), "user_message")
        for i, part in enumerate(blocks_of(get(message, "parts"), f"{where}.parts")):
            first = len(scan.items)
            call, response = get(part, _spelled(part, _CALL)), get(part, _spelled(part, _RESPONSE))
            if response is not None:
                _scan_response(scan, response, i, tool_names)
            elif call is not None:
                arguments = get(call, "args")
                found = None if arguments is None else ARGUMENTS.read(arguments)
                scan.add_call(i, get(call, "id"), get(call, "name"), found, arguments)
            elif item_type == "user_message" and scan.add_media(i, item_type, _MEDIA.read(part)):
                continue
            elif get(part, "text") is not None:
                text = text_of(part, f"{where}.parts[{i}]")
                if get(part, "thought"):
                    scan.texts.append(text)
                else:
                    scan.items.append(Item(i, item_type, text))
            else:
                found_texts = (get(get(part, holder), field) for holder, field in _FIXED)
                scan.texts.extend(text for text in found_texts if isinstance(text, str))
            if any(get(holder, name) is True for holder in (call, response) for name in _CONTINUES):
                scan.mark_pending(first)
        return scan

    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""
        index = cast("int", block)  # no content of this format is one value
        part = get(message, "parts")[index]
        response, call = _spelled(part, _RESPONSE), _spelled(part, _CALL)
        if get(part, response) is not None:
            return ("parts", index, response, "response"), _RESULT
        if get(part, call) is not None:
            return ("parts", index, call, "args"), ARGUMENTS
        return ("parts", index), _MEDIA


def _spelled(part: Any, names: tuple[str, str]) -> str:
    """Return the spelling of a field that `part` uses."""
    return names[1] if get(part, names[0]) is None else names[0]


def _scan_response(scan: Scan, response: Any, index: int, tool_names: Mapping[str, str]) -> None:
    call, returned = get(response, "id"), get(response, "response")
    name = string_or_none(get(response, "name"))
    if name is None and isinstance(call, str):
        name = tool_names.get(call)
    found = _RESULT.read(returned) if isinstance(returned, dict) else None
    # The API's own word: "error" holds what went wrong.
    is_error = bool(get(returned, "error"))
    scan.add_result(index, call, name, found, is_error=is_error)
