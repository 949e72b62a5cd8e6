"""What docs/systems/context_refs.md takes as given."""

log = "a line of output\n" * 2000 + "make: *** [all] Error 1"
