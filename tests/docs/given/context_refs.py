"""Definitions for the code of docs/systems/context_refs.md."""

log = "a line of output\n" * 2000 + "make: *** [all] Error 1"
