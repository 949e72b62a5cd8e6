"""The text that replaces an item in a message, and how the library recognizes its own.

Byte-stable: a placeholder depends on its item alone, with no time, counter or path, so that a provider's
prompt cache keeps its prefix on every run and machine.
"""

from offload.placeholder._default import (
    TEXT_VERSION,
    DefaultRenderer,
    MediaAwareRenderer,
    escape_placeholders,
    safe_for_model,
    tool_label,
)
from offload.placeholder._facts import Categorizes, PlaceholderFacts, PlaceholderRenderer
from offload.placeholder._forms import PATH_FORM, REF_LINE_CHARS, known_refs, ref_of_line, ref_of_path
from offload.placeholder._notice import (
    NOTICE_TOOL,
    NOTICE_TYPE,
    Notice,
    NoticeRenderer,
    notice_number,
)
from offload.placeholder._template import TemplateRenderer

__all__ = [
    "NOTICE_TOOL",
    "NOTICE_TYPE",
    "PATH_FORM",
    "REF_LINE_CHARS",
    "TEXT_VERSION",
    "Categorizes",
    "DefaultRenderer",
    "MediaAwareRenderer",
    "Notice",
    "NoticeRenderer",
    "PlaceholderFacts",
    "PlaceholderRenderer",
    "TemplateRenderer",
    "escape_placeholders",
    "known_refs",
    "notice_number",
    "ref_of_line",
    "ref_of_path",
    "safe_for_model",
    "tool_label",
]
