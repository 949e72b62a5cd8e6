"""Integrations with agent frameworks, one module per framework.

Each module needs the extra of the same name and raises `MissingExtraError` without it.
"""
