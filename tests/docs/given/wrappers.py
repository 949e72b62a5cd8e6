"""Definitions for the code of docs/stores/wrappers.md."""

my_key = bytes(range(32))
