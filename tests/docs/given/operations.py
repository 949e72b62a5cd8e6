"""Definitions for the code of docs/operations.md."""

output = "a line of output\n" * 2000
