"""Header, counts, listing entry, ref and title: what is known of an item without its content."""

from offload.record._header import (
    ITEM_TYPES,
    MAX_DRAWS,
    REF_FORMS,
    REF_LETTERS,
    SAMPLE_REF,
    SCHEMA_VERSION,
    Counts,
    Header,
    ItemIdentity,
    OffloadableType,
    RecordInfo,
    RefForm,
    RefStyle,
    draw_ref,
)
from offload.record._text import decode_text, encode_text, escape_controls, escape_surrogates
from offload.record._titles import (
    MAX_TITLE_CHARS,
    checked_title,
    first_line_of,
    has_words,
    title_of,
    words_of_query,
)

__all__ = [
    "ITEM_TYPES",
    "MAX_DRAWS",
    "MAX_TITLE_CHARS",
    "REF_FORMS",
    "REF_LETTERS",
    "SAMPLE_REF",
    "SCHEMA_VERSION",
    "Counts",
    "Header",
    "ItemIdentity",
    "OffloadableType",
    "RecordInfo",
    "RefForm",
    "RefStyle",
    "checked_title",
    "decode_text",
    "draw_ref",
    "encode_text",
    "escape_controls",
    "escape_surrogates",
    "first_line_of",
    "has_words",
    "title_of",
    "words_of_query",
]
