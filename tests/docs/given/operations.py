"""What docs/operations.md takes as given."""

output = "a line of output\n" * 2000
