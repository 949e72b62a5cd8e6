"""Gemini contents: roles user and model; parts with one field set each.

Dicts in the spelling of the REST API (`functionResponse`) and of the SDK (`function_response`), and the
objects of google-genai. https://ai.google.dev/api/caching#Content
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.messages._documents import DocumentKind, TextFile
from offload.messages._shapes import JsonObject
from offload.messages.access import Path, block_list, get, role_of, text_of
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.calls import Calls
from offload.messages.media import DataPaths, Media

_CALL = ("functionCall", "function_call")
_RESPONSE = ("functionResponse", "function_response")
_CONTINUES = ("willContinue", "will_continue")
# Holder and field of the model's own code and its output.
_CODE_TEXTS = (
    (("executableCode", "executable_code"), "code"),
    (("codeExecutionResult", "code_execution_result"), "output"),
)
# A response must be an object; the SDK puts the return value of a function under `result`.
_RESULT = JsonObject("result")
# The `parts` of a response cannot hold texts: images there are kept.
_DATA = (
    DataPaths(("inlineData", "data"), ("inlineData", "mimeType")),
    DataPaths(("inline_data", "data"), ("inline_data", "mime_type")),
)
_MEDIA = Media(_DATA, {})
_DOCUMENTS = (DocumentKind((), TextFile(_DATA)),)


class GeminiAdapter(MessageAdapter):
    """Contents of the Gemini API."""

    name = "gemini"

    def claims(self, message: Any) -> bool:
        """Return whether it has parts without a type, which the parts of other formats have."""
        parts = get(message, "parts")
        return isinstance(parts, list) and all(
            get(part, "type") is None and get(part, "part_kind") is None for part in parts
        )

    def role(self, message: Any, where: str) -> str:
        """Return the role of a message; that of one without a role is "user"."""
        if get(message, "role") is None:
            return "user"
        role = role_of(message, where)
        return "assistant" if role == "model" else role

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        scan = Scan.of_role(self.role(message, where), calls)
        scan.add_blocks(get(message, "parts"), ("parts",), f"{where}.parts", _scan_part)
        return scan.with_rest(message)

    def results(self, message: Any) -> Sequence[Any]:
        responses = (get(part, _spelled(part, _RESPONSE)) for part in block_list(get(message, "parts")))
        return [get(response, "id") for response in responses if response is not None]

    def user_message(self, text: str) -> Any:
        return {"role": "user", "parts": [{"text": text}]}


def _spelled(part: Any, names: tuple[str, str]) -> str:
    """Return the spelling of a field that `part` uses."""
    return names[1] if get(part, names[0]) is None else names[0]


def _scan_part(scan: Scan, index: int, path: Path, part: Any, where: str) -> None:
    first = len(scan.items)
    call_field, response_field = _spelled(part, _CALL), _spelled(part, _RESPONSE)
    call, response = get(part, call_field), get(part, response_field)
    if response is not None:
        returned = get(response, "response")
        source = scan.add_result(
            index,
            (*path, response_field, "response"),
            returned if isinstance(returned, dict) else None,
            "",
            call=get(response, "id"),
            name=get(response, "name"),
            shape=_RESULT,
            # The API defines the key "error" for failures.
            is_error=bool(get(returned, "error")),
        )
        place = (*path, response_field, "parts")
        scan.add_parts(index, place, get(response, "parts"), _DOCUMENTS, source=source)
    elif call is not None:
        scan.add_call(
            index, (*path, call_field, "args"), get(call, "id"), get(call, "name"), get(call, "args")
        )
    elif scan.add_document(index, path, part, _DOCUMENTS) or scan.add_media(index, path, part, _MEDIA):
        return
    elif get(part, "text") is None:
        for names, field in _CODE_TEXTS:
            holder = _spelled(part, names)
            scan.say_texts(get(part, holder), (*path, holder), field)
    elif get(part, "thought"):
        scan.say((*path, "text"), text_of(part, where))
    else:
        scan.add_text(index, path, text_of(part, where), _MEDIA)
    if any(get(holder, name) is True for holder in (call, response) for name in _CONTINUES):
        scan.mark_pending(first)
