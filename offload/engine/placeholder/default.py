"""Placeholders of the library's own form, of texts and of media."""

from __future__ import annotations

import re

from offload.base.patterns import lazy_pattern
from offload.base.text import escape_surrogates, show_controls
from offload.engine.placeholder._facts import PlaceholderFacts, PlaceholderRenderer
from offload.messages.media import MediaFacts, media_ref
from offload.storage.layout import REF_PATTERN

_FIRST_LINE = lazy_pattern(rf"\[Offloaded: [^\n]{{1,200}} id ({REF_PATTERN})\]\n")
_LOOK_ALIKE = lazy_pattern(r"\[(?=Offloaded: )")
_PLAIN_NAME = lazy_pattern(r"[\w.:/-]+", re.ASCII)
_LABEL_CHARS = 40
_NAMES = {
    "tool_call": "tool call arguments",
    "user_message": "user message",
    "assistant_message": "assistant message",
    "system_prompt": "system prompt",
    "skill_prompt": "skill prompt",
    "compaction_summary": "summary",
}


def escape_placeholders(text: str) -> str:
    """Return `text` with a backslash before each start of a placeholder, so that it cannot pass for one."""
    return _LOOK_ALIKE.sub(r"\\[", text)


def unescape_placeholders(text: str) -> str:
    """Return the text that `escape_placeholders` returned `text` for."""
    return text.replace("\\[Offloaded: ", "[Offloaded: ")


def safe_for_model(text: str) -> str:
    """Return `text` for a model: it cannot pass for a placeholder and has no control that hides."""
    return escape_placeholders(escape_surrogates(show_controls(text)))


def tool_label(name: str) -> str:
    """Return a tool's name for a line of a placeholder: short, and without brackets or newlines."""
    label = name if _PLAIN_NAME.fullmatch(name) else ascii(name).replace("[", "(").replace("]", ")")
    return label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 3] + "..."


class DefaultRenderer:
    """Placeholders with the item's name, size and id, an excerpt, and the call that reads the rest."""

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder: facts, the columns of a table, the preview, a line with the next call.

        That of an answer of a retrieval tool is short, since the call that gives the answer again names it.
        """
        if facts.call:
            return f"[Offloaded: answer, id {facts.ref}]\n[Do not guess it. Ask again: {facts.call}]"
        size = f"{facts.lines} line{'s' * (facts.lines != 1)}, {facts.chars} characters"
        size += f", shown decoded from {facts.encoding.upper()}" if facts.encoding else ""
        redacted = ", redacted" if facts.is_redacted else ""
        first = f"[Offloaded: {_name(facts)}, {size}{redacted}, id {facts.ref}]\n"
        if facts.summary is not None:
            first += f"[Summary: {safe_for_model(facts.summary)}]\n"
        excerpt = safe_for_model(facts.preview.text).rstrip("\n")
        if facts.table:
            first += f"{safe_for_model(facts.table)}\n"
        call = f'context_read(id="{facts.ref}", offset={facts.preview.head_chars})'
        if not excerpt:
            return f"{first}[Read it: {call}]"
        return f"{first}{excerpt}\n[Preview only; do not guess the rest. Continue: {call}]"

    def find_ref(self, text: str) -> str | None:
        """Return the id in the first line of `text`, None if that line is not a placeholder's."""
        match = _FIRST_LINE.match(text)
        return match[1] if match else None


class MediaAwareRenderer:
    """A renderer that adds placeholders of images and documents to those of another renderer.

    The line for an image or a document has one form, since the message formats must recognize it: it is one
    of the texts of a result, and these texts are an item of their own.
    """

    def __init__(self, texts: PlaceholderRenderer) -> None:
        self._texts = texts

    def render(self, facts: PlaceholderFacts) -> str:
        """Return a line for an image or a document, and the other renderer's placeholder for a text."""
        return self._texts.render(facts) if facts.media is None else _media_line(facts, facts.media)

    def find_ref(self, text: str) -> str | None:
        """Return the ref in a placeholder of either kind, None in any other text."""
        return media_ref(text) or self._texts.find_ref(text)


def _name(facts: PlaceholderFacts) -> str:
    if facts.tool_name is None:
        return _NAMES.get(facts.item_type, "tool result")
    part = "arguments" if facts.item_type == "tool_call" else "result"
    return f"{tool_label(facts.tool_name)} {part}"


def _media_line(facts: PlaceholderFacts, media: MediaFacts) -> str:
    source = "the user" if facts.tool_name is None else tool_label(facts.tool_name)
    if facts.tool_name is None and facts.item_type == "tool_result":
        source = "a tool"
    size = f", {media.pixels[0]}x{media.pixels[1]} pixels" if media.pixels else ""
    name = f"{media.kind} of {source}, {tool_label(media.media_type)}{size}, {media.bytes} bytes"
    return f"[Offloaded: {name}, id {facts.ref}. It cannot be shown again]"
