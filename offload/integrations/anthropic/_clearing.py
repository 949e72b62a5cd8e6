"""Server-side clearing of tool results (`clear_tool_uses`), with the cleared results stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offload.engine.policy import OffloadPolicy, Rule
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS
from offload.errors import ConfigError
from offload.messages.base import Item
from offload.messages.formats import scan_of
from offload.offloader import Offloader

_EDIT = "clear_tool_uses_20250919"
# The API's default for `keep`.
_KEEP = 3
# No preview: these placeholders are never sent.
_NEVER, _ALWAYS = Rule(enabled=False), Rule(min_chars=1, preview_chars=0)
_RESULTS = {"tool_result": _ALWAYS, "user_message": _NEVER, "skill_prompt": _NEVER}
_MAX_ROWS = 50
_ARGUMENT_CHARS = 80
_HEAD = "[Earlier tool results were cleared here but are stored. Read them with:]"


class ClearedResults:
    """Stores the tool results that a `clear_tool_uses` edit of the API clears from the model's context.

    The caller keeps the full conversation, as the edit requires. Results are stored before the request that
    may clear them. After the API has cleared results, each request ends with a note that lists them. If a
    result cannot be stored, the request is sent without the edit, so nothing is cleared.

    The note moves to the end of each request. Where thinking is bound to what was sent before it, that would
    be a change, so such a request has none: the messages are sent as they are, and the model finds the
    results with context_list and the other tools.

    Args:
        offloader: the `Offloader` of the session. Of its policy only `history` is used: every result that the
            API may clear is stored, or quoted in the note if that is shorter.
        context_management: the argument for the request; other edits in it are unchanged.

    Raises:
        ConfigError: `context_management` has no edit that clears tool uses.
    """

    def __init__(self, offloader: Offloader, context_management: Mapping[str, Any]) -> None:
        self._edits = list(context_management["edits"])
        clearing = [edit for edit in self._edits if edit["type"] == _EDIT]
        if not clearing:
            raise ConfigError(f"context_management must have an edit of type {_EDIT!r}")
        self._keep = clearing[0].get("keep", {}).get("value", _KEEP)
        self._excluded = frozenset(clearing[0].get("exclude_tools") or ())
        inputs = _ALWAYS if clearing[0].get("clear_tool_inputs") else _NEVER
        # The messages with placeholders are never sent, so nothing that was sent is changed.
        policy = OffloadPolicy(
            types={**_RESULTS, "tool_call": inputs},
            answers=_NEVER,
            tool_media=_ALWAYS,
            min_saving=0,
            history="editable",
        )
        self._offloader = offloader
        self._archive = offloader.with_options(
            policy=policy, on_error="keep", should_offload=None, journal=False
        )
        self._renderer = offloader.options.placeholder
        self._cleared = 0

    def request(self, messages: Sequence[Any]) -> dict[str, Any]:
        """Store the results that the API may clear; return `messages` and `context_management` to send.

        The note is at the end of the last message if that is a user message, unless thinking is bound.
        """
        items = [item for message in messages for item in scan_of(message).offloadable]
        made = (each for message in messages for each in scan_of(message).calls)
        calls = {call_id: call.name for call_id, call in made if call_id}
        # The API does not document whether calls of excluded tools count towards `keep`.
        old = list(calls)[: max(0, len(calls) - self._keep)]
        clearable = [call for call in old if calls[call] not in self._excluded]
        out = self._archive.offload(messages, pinned=calls.keys() - set(clearable))
        edits = [edit for edit in self._edits if edit["type"] != _EDIT or not out.errors]
        listed = [] if self._offloader.is_bound(messages) else clearable[: self._cleared]
        sent = _with_note(messages, self._note(listed, calls, items, out.messages))
        return {"messages": sent, "context_management": {"edits": edits}}

    def note(self, response: Any) -> None:
        """Read from a response how many tool uses the API cleared."""
        applied = response.context_management.applied_edits if response.context_management else []
        self._cleared = sum(edit.cleared_tool_uses for edit in applied if edit.type == _EDIT)

    def _note(
        self, cleared: list[str], names: Mapping[str, str], items: Iterable[Item], stored: Sequence[Any]
    ) -> str:
        """Return the note on the calls `cleared`, empty if there are none."""
        arguments = {item.tool_use_id: item.text for item in items if item.item_type == "tool_call"}
        texts: dict[str | None, list[str]] = {}
        for item in (item for message in stored for item in scan_of(message).offloadable if cleared):
            if item.item_type == "tool_result":
                texts.setdefault(item.tool_use_id, []).append(item.text)
        rows, quoted = [], []
        for call in cleared:
            if names[call] in RETRIEVAL_TOOLS:
                continue
            label = f"- {names[call]}({arguments.get(call, '')[:_ARGUMENT_CHARS]}): "
            for text in texts.get(call, ()):
                ref = self._renderer.find_ref(text)
                if ref is None:
                    quoted.append(label + text)
                else:
                    rows.append(f'{label}context_read(id="{ref}")')
        older = ["- older ones: context_list"] if len(rows) > _MAX_ROWS else []
        lines = [*older, *rows[-_MAX_ROWS:], *quoted]
        return "\n".join([_HEAD, *lines]) if lines else ""


def _with_note(messages: Sequence[Any], note: str) -> list[Any]:
    last = messages[-1] if messages else None
    if not note or not isinstance(last, Mapping) or last["role"] != "user":
        return list(messages)
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*messages[:-1], {**last, "content": [*blocks, {"type": "text", "text": note}]}]
