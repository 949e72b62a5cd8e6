"""The text that replaces an item in a message, and how the library recognizes its own.

Byte-stable: a placeholder depends on its item alone, with no time, counter or path, so that a provider's
prompt cache keeps its prefix on every run and machine.
"""

from offload.engine.placeholder._facts import Categorizes, PlaceholderFacts, PlaceholderRenderer
from offload.engine.placeholder._template import TemplateRenderer
from offload.engine.placeholder.default import DefaultRenderer
from offload.engine.placeholder.notice import Notice, NoticeRenderer

__all__ = [
    "Categorizes",
    "DefaultRenderer",
    "Notice",
    "NoticeRenderer",
    "PlaceholderFacts",
    "PlaceholderRenderer",
    "TemplateRenderer",
]
