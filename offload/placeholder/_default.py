"""The placeholder that an offloader makes unless it is given another renderer."""

from __future__ import annotations

import re

from offload.layout import REF_PATTERN
from offload.placeholder._facts import PlaceholderFacts
from offload.placeholder._text import escape_placeholders, tool_label
from offload.record import escape_surrogates

_MARK = "[Offloaded: "
_FIRST_LINE = re.compile(rf"\[Offloaded: [^\n]{{1,200}} id ({REF_PATTERN})\]\n")
_WORDS = {
    "tool_call": "tool call arguments",
    "user_message": "user message",
    "assistant_message": "assistant message",
    "system_prompt": "system prompt",
    "skill_prompt": "skill prompt",
    "compaction_summary": "summary",
}


class DefaultRenderer:
    """What it is, how large, an excerpt, that the excerpt is incomplete, and the one call that reads on."""

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder: one line of facts, the preview, one line that says how to read on."""
        size = f"{facts.lines} line{'s' * (facts.lines != 1)}, {facts.chars} characters"
        redacted = ", redacted" if facts.is_redacted else ""
        first = f"{_MARK}{_what(facts)}, {size}{redacted}, id {facts.ref}]\n"
        if facts.summary is not None:
            first += f"[Summary: {escape_placeholders(escape_surrogates(facts.summary))}]\n"
        shown = escape_placeholders(escape_surrogates(facts.preview.text)).rstrip("\n")
        call = f'context_read(id="{facts.ref}", offset={facts.preview.head_chars})'
        if not shown:
            return f"{first}[Read it: {call}]"
        return f"{first}{shown}\n[Preview only; do not guess the rest. Continue: {call}]"

    def find_ref(self, text: str) -> str | None:
        """Return the id in the first line of `text`, if that line is one of ours."""
        match = _FIRST_LINE.match(text)
        return match[1] if match else None


def _what(facts: PlaceholderFacts) -> str:
    if facts.tool_name is None:
        return _WORDS.get(facts.item_type, "tool result")
    part = "arguments" if facts.item_type == "tool_call" else "result"
    return f"{tool_label(facts.tool_name)} {part}"
