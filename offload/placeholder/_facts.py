"""What a renderer is told, and what it must do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offload.messages import MediaFacts
from offload.preview import Preview


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
        bytes: bytes of the content.
        ends: the content; of one that is too long to be held its two ends, put together.
        media: what is known of an image or a document; None for a text. Such an item has a placeholder of
            the library's own: no other renderer meets one.
    """

    ref: str
    item_type: str
    tool_name: str | None
    chars: int
    lines: int
    preview: Preview
    summary: str | None = None
    is_redacted: bool = False
    bytes: int = 0
    ends: str = ""
    media: MediaFacts | None = None


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
