"""The retrieval tools that an offloader offers to a model, and how long their answers are."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from offload.errors import ConfigError, check_number
from offload.records.record.retrieval import RETRIEVAL_TOOLS

# Every placeholder names this tool.
READ = "context_read"
MAX_ANSWER_CHARS, MIN_ANSWER_CHARS = 8192, 2000


def check_offer(names: Sequence[str], max_answer_chars: int) -> tuple[str, ...]:
    """Return the offered tools as `check_names` does. Raises `ConfigError` for too short answers too."""
    check_number("max_answer_chars", max_answer_chars, MIN_ANSWER_CHARS)
    return check_names(names)


def check_names(names: object) -> tuple[str, ...]:
    """Return the offered tools in the library's order. Raises `ConfigError` without context_read."""
    given = names if isinstance(names, Collection) and not isinstance(names, str) else (None,)
    if any(name not in RETRIEVAL_TOOLS for name in given):
        raise ConfigError(f"tools must be among {', '.join(RETRIEVAL_TOOLS)}, got {names!r}")
    if READ not in given:
        raise ConfigError(f"tools must include {READ}, which every placeholder names")
    return tuple(name for name in RETRIEVAL_TOOLS if name in given)
