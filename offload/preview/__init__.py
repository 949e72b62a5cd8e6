"""Previews: the excerpt in a placeholder, a pure function of a text and a number of characters."""

from offload.preview._kinds import Kind, kind_of
from offload.preview._names import TROUBLE
from offload.preview._preview import Preview, head_tail, preview_of
from offload.preview._sample import END_CHARS, MIDDLE_CHARS, sample_of

__all__ = [
    "END_CHARS",
    "MIDDLE_CHARS",
    "TROUBLE",
    "Kind",
    "Preview",
    "head_tail",
    "kind_of",
    "preview_of",
    "sample_of",
]
