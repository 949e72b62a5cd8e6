"""Previews: what of an item stays in view. Pure functions of a text and a budget of characters."""

from offload.preview._head_tail import Preview, head_tail
from offload.preview._kinds import Kind, kind_of
from offload.preview._salient import preview_of
from offload.preview._trouble import TROUBLE
from offload.preview._view import END_CHARS, SampledText

__all__ = ["END_CHARS", "TROUBLE", "Kind", "Preview", "SampledText", "head_tail", "kind_of", "preview_of"]
