"""The text that replaces an item in a message, and how the library recognizes its own.

Byte-stable: a placeholder depends on its item alone, with no time, counter or path, so that a provider's
prompt cache keeps its prefix on every run and machine.
"""

from offload.engine.placeholder._facts import (
    Categorizes as Categorizes,
    PlaceholderFacts as PlaceholderFacts,
    PlaceholderRenderer as PlaceholderRenderer,
)
from offload.engine.placeholder._template import TemplateRenderer as TemplateRenderer
from offload.engine.placeholder.default import DefaultRenderer as DefaultRenderer
from offload.engine.placeholder.notice import Notice as Notice, NoticeRenderer as NoticeRenderer
