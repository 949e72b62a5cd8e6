"""What docs/stores/wrappers.md takes as given."""

my_key = bytes(range(32))
