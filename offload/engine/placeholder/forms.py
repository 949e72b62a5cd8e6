"""The forms of the placeholders of all renderers of the library: pattern to ref.

A session proves the texts of its own renderer and notices strictly. A placeholder of another renderer counts
only if a record proves it, otherwise it is just text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from offload.base.patterns import lazy_pattern
from offload.engine.placeholder.default import DefaultRenderer
from offload.storage.layout import REF_PATTERN

# The placeholder of preset `context_fs`, whole.
PATH_FORM = lazy_pattern(
    r"\[Content offloaded\]\n"
    rf"Path: (?P<path>(?:/|[A-Za-z]:\\|\\\\)[^\n]*(?:call|msg)_(?P<ref>{REF_PATTERN})\.[a-z]+)\n"
    r"(?:Redacted: [^\n]+\n)?"
    r"(?:Summary: [^\n]+\n)?"
    r"Use [^\n]{1,60} to view details\."
)
# The last lines of a placeholder of preset `context_refs`, which are at most `REF_LINE_CHARS` long.
REF_LINE_FORM = lazy_pattern(
    rf"(?:^|\n)\[(?:(?:Bash|Terminal|Tool) output|Message) in context: (?P<ref>{REF_PATTERN})\]"
    r" \(\d{1,12}(?:\.\d)?(?:B|KB|MB)(?:, redacted)?\)(?:\n\nExit Code: -?\d{1,10})?\Z",
    re.ASCII,
)
REF_LINE_CHARS = 120

_DEFAULT = DefaultRenderer()


def known_refs(text: str) -> Iterator[str]:
    """Yield the ref that `text` names in each of the known forms that it has."""
    # The first two begin a text, the last ends it.
    found = (_DEFAULT.find_ref(text), ref_of_path(text)) if text.startswith("[") else ()
    for ref in (*found, ref_of_line(text)):
        if ref is not None:
            yield ref


def ref_of_path(text: str) -> str | None:
    """Return the ref in a text that has the form of preset `context_fs`, otherwise None."""
    match = PATH_FORM.fullmatch(text)
    return match["ref"] if match else None


def ref_of_line(text: str) -> str | None:
    """Return the ref in the last lines of a text in the form of preset `context_refs`, otherwise None."""
    end = text[-REF_LINE_CHARS:]
    match = REF_LINE_FORM.search(end) if " in context: " in end else None
    return match["ref"] if match else None
