"""Presets: named setups, each with its own files and placeholders, in a module of its own."""
