"""The views of a record: a table, tool-call arguments, a tree of JSON, an image, Markdown, or its text."""

from __future__ import annotations

from typing import Any, Literal

from markdown_it import MarkdownIt
from markupsafe import Markup

from offload.base.text import escape_controls
from offload.errors import ConfigError
from offload.messages.media import media_facts
from offload.reading.tables._database import WrittenTable
from offload.reading.tables._form import NoTableError
from offload.reading.tables._forms import HEAD_CHARS, form_of
from offload.reading.tools._query import RecordChunks
from offload.reading.tools.budget import Budget
from offload.records.codec.base import StoredRecord
from offload.web._color import ColorRun, colored, language_of
from offload.web._contents import kind_of_content
from offload.web._tree import members_of

RecordView = Literal["table", "arguments", "tree", "image", "text"]

# Larger content opens as text: reading all of it for another view would take too long.
_MOST_BYTES = 4 * 1024 * 1024
# A tree needs the ends of all values, which takes ten times as long as a table.
_TREE_BYTES = 1024 * 1024
_ARGUMENTS_CHARS = 256 * 1024
_TABLES = frozenset(["CSV", "TSV", "CSV with semicolons", "CSV with bars", "JSON", "JSON lines"])
# JSON of more lines is readable as it is.
_TREE_LINES = 3
_PAGE_ROWS = 50
# The images that no browser runs code of.
_IMAGES = frozenset(["image/png", "image/jpeg", "image/gif", "image/webp"])
_IMAGE_HEAD = 100
_ARGUMENT_CHARS = 8000
_MARKDOWN_CHARS = 256 * 1024


def view_of(record: StoredRecord) -> RecordView:
    """Return the view that a record opens with, judged by the ends and the beginning of its content."""
    content, counts = record.content, record.counts
    if counts.bytes > _MOST_BYTES:
        return "text"
    if image_type(record):
        return "image"
    kind = kind_of_content(content).name
    if record.header.item_type == "tool_call" and kind == "JSON" and content.chars <= _ARGUMENTS_CHARS:
        return "arguments"
    if _is_table(record):
        return "table"
    is_tree = kind == "JSON" and counts.lines <= _TREE_LINES and counts.bytes <= _TREE_BYTES
    return "tree" if is_tree else "text"


def is_markdown(record: StoredRecord) -> bool:
    """Return whether a record is Markdown that can be rendered, judged by the ends of its content."""
    return record.content.chars <= _MARKDOWN_CHARS and kind_of_content(record.content).name == "Markdown"


def rendered(record: StoredRecord) -> Markup:
    """Return the Markdown of a record as HTML; HTML and images in it are shown as text."""
    if not is_markdown(record):
        raise ConfigError(f"only Markdown of at most {_MARKDOWN_CHARS:,} characters is rendered")
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    text = escape_controls(record.content.text(0, record.content.chars))
    return Markup(renderer.render(text))  # noqa: S704 # the renderer escapes HTML, and refuses links to scripts


def image_type(record: StoredRecord) -> str:
    """Return the media type of a record that is an image, "" for any other."""
    facts = media_facts(record.content.text(0, _IMAGE_HEAD))
    return facts.media_type if facts and facts.media_type in _IMAGES else ""


def _is_table(record: StoredRecord) -> bool:
    """Return whether the whole text is surely a table of separated values or of JSON."""
    content = record.content
    try:
        form = form_of(content.text(0, HEAD_CHARS), is_whole=content.chars <= HEAD_CHARS)
    except NoTableError:
        return False
    return form is not None and form.name in _TABLES and form.is_certain and not form.pointer


def table(record: StoredRecord, page: int, column: int, *, is_descending: bool) -> Any:
    """Return for a template a page of a record's table, sorted by the column with this number if it is not 0.

    Raises `ConfigError` if the text is not a table after all, or has no such column.
    """
    shown = WrittenTable.of(RecordChunks(record, Budget()))
    if column > len(shown.columns):
        raise ConfigError(f"the table has {len(shown.columns)} columns, not {column}")
    order = [*range(len(shown.rows))]
    if column:
        values = [row[column - 1] for row in shown.values]
        order.sort(
            key=lambda at: (values[at] is not None, 0 if values[at] is None else values[at]),
            reverse=is_descending,
        )
    last = max(1, -(-len(order) // _PAGE_ROWS))
    page = min(page, last)
    first = shown.values[0] if shown.values else ()
    return {
        "result": shown,
        "shown": [shown.rows[at] for at in order[(page - 1) * _PAGE_ROWS : page * _PAGE_ROWS]],
        "are_numbers": [isinstance(value, int | float) for value in first],
        "rows": len(order),
        "number": page,
        "last": last,
        "column": column,
        "is_descending": is_descending,
    }


def arguments(record: StoredRecord) -> list[dict[str, Any]] | None:
    """Return for a template the tool-call arguments: the node of each, and the lines of a text.

    None if the content is not a JSON object.
    """
    members = members_of(record.content.text(0, record.content.chars))
    if members is None:
        return None
    language = language_of(record.title, "text")
    return [
        {
            "node": node,
            "lines": None if text is None else _lines(text[:_ARGUMENT_CHARS], language),
            "hidden": max(0, len(text or "") - _ARGUMENT_CHARS),
        }
        for node, text in members
    ]


def _lines(text: str, language: str | None) -> list[list[ColorRun]]:
    """Return the lines of a text, those of a file with its colors."""
    return colored(text.split("\n"), language if "\n" in text else None)
