"""Previews: the excerpt in a placeholder, a pure function of a text and a number of characters."""

from offload.engine.preview.preview import Preview, preview_of

__all__ = [
    "Preview",
    "preview_of",
]
