"""Previews: the excerpt in a placeholder, a pure function of a text and a number of characters."""

from offload.engine.preview.preview import Preview as Preview, preview_of as preview_of
