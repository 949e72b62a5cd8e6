"""Regular expressions that are compiled at their first use, since all of them take a fifth of an import."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, AnyStr, cast


class _LazyPattern:
    def __init__(self, compiled: Callable[[], Any]) -> None:
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        # Threads that come here at once get equal patterns.
        value = getattr(self._compiled(), name)
        setattr(self, name, value)
        return value


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern with all methods and attributes of the one that `re.compile` returns."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(lambda: re.compile(pattern, flags)))
