"""The text that stands in a message instead of an item, and how the library knows its own.

Byte-stable: it is made of facts of the item alone, with no time, counter or path, so a provider's
prompt cache keeps its prefix on every run and machine.
"""

from offload.placeholder._default import DefaultRenderer
from offload.placeholder._facts import PlaceholderFacts, PlaceholderRenderer
from offload.placeholder._media import MediaAwareRenderer
from offload.placeholder._template import TemplateRenderer
from offload.placeholder._text import TEXT_VERSION, escape_placeholders, tool_label

__all__ = [
    "TEXT_VERSION",
    "DefaultRenderer",
    "MediaAwareRenderer",
    "PlaceholderFacts",
    "PlaceholderRenderer",
    "TemplateRenderer",
    "escape_placeholders",
    "tool_label",
]
