"""Context windows of models, and the compaction thresholds for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from offload.engine.policy.models import known_model
from offload.errors import ConfigError

_log = logging.getLogger("offload")

TRIGGER_RATIO = 0.8
DEFAULT_WINDOW = 128_000


def threshold_for(model: str, windows: Mapping[str, int] | None = None) -> int:
    """Return the number of tokens at which a context is compacted: 80 % of the model's window.

    Args:
        model: the provider's name of the model, with or without a prefix such as `openai/`.
        windows: glob of model names → context window in tokens. The first match wins, before the built-in
            table; an unknown model has 128,000 tokens, and a warning is logged.

    Raises:
        ConfigError: a window is not a positive whole number.
    """
    return int(window_for(model, windows or {}) * TRIGGER_RATIO)


def window_for(model: str, windows: Mapping[str, Any]) -> int:
    """Return the context window of a model in tokens; arguments and errors as in `threshold_for`."""
    for glob, window in windows.items():
        if not isinstance(window, int) or window < 1:
            raise ConfigError(f"windows[{glob!r}] must be a positive number of tokens, got {window!r:.40}")
        if fnmatchcase(model, glob):
            return window
    return _known_window(model) if model else DEFAULT_WINDOW


@lru_cache(maxsize=256)
def _known_window(model: str) -> int:
    """Return the window of a model; the cache limits the warning to one per unknown model."""
    known = known_model(model)
    if known is not None and known.window is not None:
        return known.window
    _log.warning("unknown model %r: assuming a window of %d tokens", model, DEFAULT_WINDOW)
    return DEFAULT_WINDOW
