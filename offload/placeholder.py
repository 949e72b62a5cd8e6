"""The text that stands in a message instead of an item, and how the library knows its own.

Byte-stable: it is made of facts of the item alone, with no time, counter or path, so a provider's
prompt cache keeps its prefix on every run and machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offload.preview import Preview
from offload.record import encodable

_MARK = "[Offloaded: "
_FIRST_LINE = re.compile(r"\[Offloaded: [^\n]{1,200} id ([a-z]{10,20})\]\n")
_LOOK_ALIKE = re.compile(r"\[(?=Offloaded: )")
_PLAIN_NAME = re.compile(r"[\w.:/-]+", re.ASCII)
_LABEL_CHARS = 40
_WORDS = {
    "user_message": "user text",
    "assistant_message": "assistant text",
    "system_prompt": "system prompt",
    "skill_prompt": "skill",
    "compaction_summary": "summary",
}


@dataclass(frozen=True, slots=True)
class PlaceholderFacts:
    """What a renderer may show.

    Attributes:
        ref: the id to read the item back by.
        item_type: what kind of part of a message it is.
        tool_name: the tool that produced it, or None.
        chars: characters of the content.
        lines: lines of the content.
        preview: the excerpt to show.
        summary: what a summarizer said of the content, or None.
        is_redacted: whether something was cut out of the content before it was stored.
    """

    ref: str
    item_type: str
    tool_name: str | None
    chars: int
    lines: int
    preview: Preview
    summary: str | None = None
    is_redacted: bool = False


@runtime_checkable
class PlaceholderRenderer(Protocol):
    """Makes placeholders, and finds the ref in one.

    `render` must be a pure function of its facts, and `find_ref(render(facts))` must be `facts.ref`.
    """

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the text that replaces the item."""
        ...

    def find_ref(self, text: str) -> str | None:
        """Return the ref that `text` would stand for if it is a placeholder, else None, at little cost.

        An answer is a claim; the record decides (rule R6).
        """
        ...


class DefaultRenderer:
    """What it is, how large, an excerpt, that the excerpt is incomplete, and the one call that reads on."""

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder: one line of facts, the preview, one line that says how to read on."""
        size = f"{facts.lines} line{'s' * (facts.lines != 1)}, {facts.chars} characters"
        redacted = ", redacted" if facts.is_redacted else ""
        first = f"{_MARK}{_what(facts)}, {size}{redacted}, id {facts.ref}]\n"
        if facts.summary is not None:
            first += f"[Summary: {defuse(encodable(facts.summary))}]\n"
        shown = defuse(encodable(facts.preview.text)).rstrip("\n")
        call = f'context_read(id="{facts.ref}", offset={facts.preview.head_chars})'
        if not shown:
            return f"{first}[Read it: {call}]"
        return f"{first}{shown}\n[Incomplete preview: do not infer the rest. Read on: {call}]"

    def find_ref(self, text: str) -> str | None:
        """Return the id in the first line of `text`, if that line is one of ours."""
        match = _FIRST_LINE.match(text)
        return match[1] if match else None


def defuse(text: str) -> str:
    """Return `text` with a backslash before everything in it that looks like the start of a placeholder.

    Content that is shown must not pass for a placeholder of ours.
    """
    return _LOOK_ALIKE.sub(r"\\[", text)


def tool_label(name: str) -> str:
    """Return a tool's name as it may stand in a line of ours: whatever it holds, it ends nothing there."""
    shown = name if _PLAIN_NAME.fullmatch(name) else ascii(name).replace("[", "(").replace("]", ")")
    return shown if len(shown) <= _LABEL_CHARS else shown[: _LABEL_CHARS - 3] + "..."


def _what(facts: PlaceholderFacts) -> str:
    if facts.tool_name is None:
        return _WORDS.get(facts.item_type, "tool result")
    part = "arguments" if facts.item_type == "tool_call" else "result"
    return f"{part} of {tool_label(facts.tool_name)}"
