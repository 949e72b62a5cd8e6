"""Presets: named ways to offload, each with its own files and placeholders; import the module you mean."""
