"""The input of a renderer, and the protocol of renderers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from msgspec import Struct

from offload.engine.preview import Preview
from offload.messages.media import MediaFacts


class PlaceholderFacts(Struct, frozen=True):
    """The facts of an item that its placeholder may show.

    Attributes:
        ref: the id that reads the item.
        item_type: the type of the item.
        tool_name: the tool that produced it, or None.
        chars: characters of the content.
        lines: lines of the content.
        preview: the excerpt to show.
        summary: a summarizer's text, or None.
        is_redacted: whether parts of the content were removed before storage.
        bytes: bytes of the content.
        ends: the content; for one too long to hold, its beginning and its end, joined.
        table: a line with the columns of the table in the content, "" if it is none.
        media: the facts of an image or a document, None for a text. Only the library's own renderer gets
            media.
        call: the call of a retrieval tool that gives the content again, "" if it is not an answer of one.
        encoding: the encoding from which the content is decoded when it is read; None for UTF-8.
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
    table: str = ""
    media: MediaFacts | None = None
    call: str = ""
    encoding: str | None = None


@runtime_checkable
class PlaceholderRenderer(Protocol):
    """Renders placeholders and finds the ref in one.

    `render` must be a pure function of its facts, and `find_ref(render(facts))` must be `facts.ref`.
    """

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the text that replaces the item."""

    def find_ref(self, text: str) -> str | None:
        """Return the ref that `text` would replace if it is a placeholder, else None; must be cheap.

        A ref is a claim; the record decides.
        """


@runtime_checkable
class Categorizes(Protocol):
    """A renderer whose placeholders name a category of items: equal texts of two categories are two items."""

    def category(self, item_type: str, tool_name: str | None) -> str:
        """Return the category of an item; must be a pure function."""
