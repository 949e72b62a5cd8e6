"""Which models bind their thinking to what was sent before it, so that no earlier message may change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

HistoryRule = Literal["auto", "append_only", "editable", "rewrite"]

_CLAUDE = "https://platform.claude.com/docs/en/build-with-claude/preserved-thinking"
_OPENAI = "https://developers.openai.com/api/docs/guides/reasoning"
_GOOGLE = "https://ai.google.dev/gemini-api/docs/thought-signatures"
_DEEPSEEK = "https://api-docs.deepseek.com/guides/thinking_mode"


class KnownModels(NamedTuple):
    """Models whose provider says whether an earlier message may change.

    Attributes:
        names: regular expressions of their names, without provider, region, date and version.
        binds: whether a signed block of thinking is refused once a message before it has changed.
        source: the page that states it, or that states no such check.
        as_of: the month of that page.
    """

    names: Sequence[str]
    binds: bool
    source: str
    as_of: str


# "claude-opus-5" is an older model than "claude-opus-5-5": a name must match as a whole.
MODELS: Sequence[KnownModels] = (
    KnownModels(
        (r"claude-(?:fable|mythos)-5-[12]", r"claude-(?:opus|sonnet|haiku)-5-5"),
        binds=True,
        source=_CLAUDE,
        as_of="2026-11",
    ),
    KnownModels(
        (
            r"claude-(?:opus|sonnet|fable|mythos)-5",
            r"claude-mythos-preview",
            r"claude-(?:opus|sonnet|haiku)-4(?:-\d)?",
            r"claude-3(?:-[57])?-(?:opus|sonnet|haiku)",
        ),
        binds=False,
        source=_CLAUDE,
        as_of="2026-11",
    ),
    KnownModels(
        (r"gpt-[\w.-]+", r"chatgpt-[\w.-]+", r"o[134](?:-[\w.-]+)?"),
        binds=False,
        source=_OPENAI,
        as_of="2026-11",
    ),
    KnownModels((r"gemini-[\w.-]+",), binds=False, source=_GOOGLE, as_of="2026-11"),
    KnownModels((r"deepseek-[\w.-]+",), binds=False, source=_DEEPSEEK, as_of="2026-10"),
)

# Before a model's name: a provider or a region; behind it: a date, a version, the size of the window. A list
# of models, of which any may answer, is not a name.
_PREFIX = r"(?:[^,\s]*[/.:])?"
_SUFFIX = r"(?:[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest|v\d+(?::\d+)?)|:\d+|\[1m\])*"


@lru_cache(maxsize=256)
def binds_thinking(model: str | None) -> bool | None:
    """Return whether a model refuses thinking after a changed message; None if that is not known."""
    if not model:
        return None
    # Some routers write a version with a dot.
    name = re.sub(r"(?<=\d)\.(?=\d)", "-", model.strip().lower())
    for known in MODELS:
        if any(re.fullmatch(_PREFIX + f"(?:{each})" + _SUFFIX, name) for each in known.names):
            return known.binds
    return None
