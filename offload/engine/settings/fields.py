"""The fields of a host's tools in which a model may pass a reference to stored text instead of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.errors import ConfigError

# The most characters of all content that one call gets.
MAX_REFERENCE_CHARS = 1024 * 1024


def check_fields(fields: object) -> tuple[str, ...]:
    """Return the fields that may have references, each `TOOL.FIELD`. Raises `ConfigError`."""
    names: tuple[Any, ...] = (None,)
    if isinstance(fields, Sequence) and not isinstance(fields, str | bytes):
        names = tuple(fields)
    if not all(isinstance(name, str) and all(name.partition(".")) and "\0" not in name for name in names):
        raise ConfigError(
            f'fields for references must be a list such as ["write_file.content"], got {fields!r:.80}'
        )
    return names


def only_tool(fields: Sequence[str]) -> str:
    """Return the one tool that the allowed fields name. Raises `ConfigError`."""
    tools = dict.fromkeys(name.partition(".")[0] for name in fields)
    if len(tools) != 1:
        named = ", ".join(tools) or "no tool"
        raise ConfigError(f"name the tool of the arguments in `tool`: the allowed fields name {named}")
    return next(iter(tools))


def reference_prompt(fields: Sequence[str]) -> str:
    """Return the line of a system prompt that explains references, for the allowed fields."""
    return (
        f'To pass stored text to {", ".join(fields)} without writing it, pass {{"$ref": "ID"}}; for a part '
        'add "lines": "10-40" or "pointer": "/items".'
    )
