"""Names of the retrieval tools, and what their calls and answers are recognized by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

# The tools that a model gets by default, and all that there are.
TOOL_NAMES = ("context_list", "context_read", "context_grep", "context_query")
RETRIEVAL_TOOLS = (*TOOL_NAMES, "context_tail", "context_diff")
LIST = "context_list"
# The tools that show parts of an item.
READ_TOOLS = frozenset(RETRIEVAL_TOOLS) - {LIST}
# The arguments that name items.
REF_FIELDS = ("id", "ids", "old", "new")
_READ_ENDINGS = tuple(mark + name for mark in "_-./:" for name in READ_TOOLS)


def is_read_back(tool_name: str) -> bool:
    """Return whether a tool shows parts of an item, also with a client's prefix: `mcp__x__context_read`."""
    return tool_name in READ_TOOLS or tool_name.endswith(_READ_ENDINGS)


@lru_cache(4096)  # several decisions ask about each item
def is_answer(item_type: str, tool_name: str | None) -> bool:
    """Return whether an item of this type and tool is the answer of a tool that shows parts of an item."""
    return item_type == "tool_result" and tool_name is not None and is_read_back(tool_name)


def reads_of(arguments: Mapping[str, Any]) -> list[str]:
    """Return the ids of the items that a call of a retrieval tool names, else the texts that it looks for."""
    given = (arguments.get(name) for name in REF_FIELDS)
    ids = [each for value in given for each in _listed(value)]
    wanted = (value for name, value in arguments.items() if name not in ("mode", "cursor"))
    return _texts(ids) or _texts(wanted)


def _listed(value: object) -> Iterable[object]:
    """Return the ids in an argument: a list, or a text that may have several with commas."""
    if isinstance(value, list | tuple):
        return value
    return [each.strip() for each in value.split(",")] if isinstance(value, str) else ()


def _texts(values: Iterable[object]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
