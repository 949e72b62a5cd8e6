"""Previews: what of an item stays in view. Pure functions of a text and a budget of characters."""

from offload.preview._head_tail import Preview, head_tail

__all__ = ["Preview", "head_tail"]
