"""Regular expressions that are compiled at their first use, since all of them take a fifth of an import."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, AnyStr, cast


class _Compiled:
    """A pattern that has the methods and attributes of a compiled one as its own."""


class _LazyPattern(_Compiled):
    def __init__(self, compiled: Callable[[], Any]) -> None:
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        # Threads that come here at once get equal patterns.
        compiled = self._compiled()
        self.__dict__.update((each, getattr(compiled, each)) for each in dir(compiled) if each[0] != "_")
        # Python finds attributes faster if no class has `__getattr__`.
        object.__setattr__(self, "__class__", _Compiled)
        return getattr(compiled, name)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern with all methods and attributes of the one that `re.compile` returns."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(lambda: re.compile(pattern, flags)))
