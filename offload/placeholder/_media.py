"""What stands for an image or a document: one line of the library's own, whatever renders texts."""

from __future__ import annotations

from offload.messages import MediaFacts, stand_in_ref
from offload.placeholder._facts import PlaceholderFacts, PlaceholderRenderer
from offload.placeholder._text import tool_label


class MediaAwareRenderer:
    """A renderer that leaves texts to another one.

    The line for an image or a document has one form, since the formats of messages must know it: it stands
    among the texts of a result, which are an item of their own.

    Args:
        texts: renders the placeholders of texts.
    """

    def __init__(self, texts: PlaceholderRenderer) -> None:
        self._texts = texts

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder of an item."""
        return self._texts.render(facts) if facts.media is None else _line(facts, facts.media)

    def find_ref(self, text: str) -> str | None:
        """Return the ref that `text` would stand for, None if it looks like no placeholder."""
        return stand_in_ref(text) or self._texts.find_ref(text)


def _line(facts: PlaceholderFacts, media: MediaFacts) -> str:
    source = "the user" if facts.tool_name is None else tool_label(facts.tool_name)
    if facts.tool_name is None and facts.item_type == "tool_result":
        source = "a tool"
    size = f", {media.pixels[0]}x{media.pixels[1]} pixels" if media.pixels else ""
    what = f"{media.kind} of {source}, {tool_label(media.media_type)}{size}, {media.bytes} bytes"
    return f"[Offloaded: {what}, id {facts.ref}. It cannot be shown again]"
