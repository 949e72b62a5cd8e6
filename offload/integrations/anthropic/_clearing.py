"""Server-side clearing of tool results (`clear_tool_uses`): what it clears is kept for the model to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offload.errors import ConfigError
from offload.messages import Item, scan_of
from offload.offloader import Offloader
from offload.policy import TOOL_NAMES, OffloadPolicy, Rule

_EDIT = "clear_tool_uses_20250919"
# What the API keeps where a request does not say.
_KEEP = 3
# Without a preview: what stands for a result here is never sent.
_NEVER, _ALWAYS = Rule(enabled=False), Rule(min_chars=1, preview_chars=0)
_RESULTS = {"tool_result": _ALWAYS, "user_message": _NEVER, "skill_prompt": _NEVER}
_MAX_ROWS = 50
_ARGUMENT_CHARS = 80
_HEAD = "[Results of earlier tool calls were cleared from this conversation. They are kept, and read so:]"


class ClearedResults:
    """Keeps readable what the API clears from a conversation by a `clear_tool_uses` edit.

    The caller keeps the whole conversation, as that edit wants it; the model alone loses results. Here they
    are stored before the request that may clear them, and once the API told what it cleared, each request
    ends with a note that names them. If one cannot be stored the request goes without the edit, and so
    nothing is cleared.

        cleared = ClearedResults(off, context_management)
        response = client.beta.messages.create(**cleared.request(messages), **rest)
        cleared.note(response)

    Args:
        offloader: whose session the results go to. Its policy says nothing here: what the server may clear
            is stored whatever its size, or stands in the note where a placeholder would be longer.
        context_management: what the request says; another edit in it stays as it is.

    Raises:
        ConfigError: no edit in it clears tool uses.
    """

    def __init__(self, offloader: Offloader, context_management: Mapping[str, Any]) -> None:
        self._edits = list(context_management["edits"])
        found = [edit for edit in self._edits if edit["type"] == _EDIT]
        if not found:
            raise ConfigError(f"context_management has no edit of type {_EDIT!r}")
        self._keep = found[0].get("keep", {}).get("value", _KEEP)
        self._excluded = frozenset(found[0].get("exclude_tools") or ())
        inputs = _ALWAYS if found[0].get("clear_tool_inputs") else _NEVER
        policy = OffloadPolicy(types={**_RESULTS, "tool_call": inputs}, media=_ALWAYS, min_saving=0)
        self._archive = offloader.with_options(policy=policy, on_error="keep", should_offload=None)
        self._renderer = offloader.options.placeholder
        self._cleared = 0

    def request(self, messages: Sequence[Any]) -> dict[str, Any]:
        """Store what the API may clear of `messages`; return `messages` and `context_management` to send.

        The messages are those given, with the note at the end of the last one if it is a user's.
        """
        items = [item for message in messages for item in scan_of(message).offloadable]
        calls = {call: name for message in messages for call, name in scan_of(message).calls.items()}
        # Whether the API counts calls of excluded tools among those that it keeps, it does not say.
        old = list(calls)[: max(0, len(calls) - self._keep)]
        may_go = [call for call in old if calls[call] not in self._excluded]
        out = self._archive.offload(messages, pinned=calls.keys() - set(may_go))
        edits = [edit for edit in self._edits if edit["type"] != _EDIT or not out.errors]
        sent = _with_note(messages, self._note(may_go[: self._cleared], calls, items, out.messages))
        return {"messages": sent, "context_management": {"edits": edits}}

    def note(self, response: Any) -> None:
        """Learn from a response what the API cleared before the model saw the conversation."""
        applied = response.context_management.applied_edits if response.context_management else []
        self._cleared = sum(edit.cleared_tool_uses for edit in applied if edit.type == _EDIT)

    def _note(
        self, cleared: list[str], names: Mapping[str, str], items: Iterable[Item], stored: Sequence[Any]
    ) -> str:
        """Return the note on the calls `cleared`, empty without any."""
        arguments = {item.tool_use_id: item.text for item in items if item.item_type == "tool_call"}
        texts: dict[str | None, list[str]] = {}
        for item in (item for message in stored for item in scan_of(message).offloadable if cleared):
            if item.item_type == "tool_result":
                texts.setdefault(item.tool_use_id, []).append(item.text)
        named, quoted = [], []
        for call in cleared:
            if names[call] in TOOL_NAMES:
                continue
            label = f"- {names[call]}({arguments.get(call, '')[:_ARGUMENT_CHARS]}): "
            for text in texts.get(call, ()):
                ref = self._renderer.find_ref(text)
                if ref is None:
                    quoted.append(label + text)
                else:
                    named.append(f'{label}context_read(id="{ref}")')
        older = ["- older ones: context_list"] if len(named) > _MAX_ROWS else []
        rows = [*older, *named[-_MAX_ROWS:], *quoted]
        return "\n".join([_HEAD, *rows]) if rows else ""


def _with_note(messages: Sequence[Any], note: str) -> list[Any]:
    last = messages[-1] if messages else None
    if not note or not isinstance(last, Mapping) or last["role"] != "user":
        return list(messages)
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*messages[:-1], {**last, "content": [*blocks, {"type": "text", "text": note}]}]
