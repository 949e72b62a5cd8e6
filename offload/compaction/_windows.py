"""From how many tokens on a context is full, by the model that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from offload.errors import ConfigError

TRIGGER_RATIO = 0.8
DEFAULT_WINDOW = 128_000

# What each family takes as input, by the pages of models of its provider: docs.claude.com,
# platform.openai.com, ai.google.dev and api-docs.deepseek.com. Where members differ, the least of those
# that are offered. The first that matches counts.
WINDOWS: Mapping[str, int] = {
    "*claude*": 200_000,
    "*gpt-5*chat*": 128_000,
    # Of the 400,000 that are stated, 128,000 are for the answer.
    "*gpt-5*": 272_000,
    "*gpt-4.1*": 1_047_576,
    "*gpt-4o*": 128_000,
    "*gpt-4-turbo*": 128_000,
    "*gpt-4-*-preview*": 128_000,
    "*gpt-4-32k*": 32_768,
    "*gpt-4*": 8_192,
    "*gpt-3.5*": 16_385,
    "o1-mini*": 128_000,
    "o1-preview*": 128_000,
    "o[134]*": 200_000,
    "*gemini-*": 1_048_576,
    "*deepseek*": 128_000,
}


def threshold_for(model: str, windows: Mapping[str, int] | None = None) -> int:
    """Return from how many tokens on a context is to be compacted: 80 % of the model's window.

    Args:
        model: name of the model, as the provider has it, with or without a prefix such as `openai/`.
        windows: glob of model names → context window in tokens. The first that matches counts, before
            what is known here; for a model that nothing matches a window of 128,000 tokens is taken.

    Raises:
        ConfigError: a window is no positive whole number.
    """
    return int(window_for(model, windows or {}) * TRIGGER_RATIO)


def window_for(model: str, windows: Mapping[str, Any]) -> int:
    """Return the context window of a model in tokens; arguments and errors as in `threshold_for`."""
    for glob, window in windows.items():
        if not isinstance(window, int) or window < 1:
            raise ConfigError(f"windows[{glob!r}] is a positive number of tokens, not {window!r:.40}")
        if fnmatchcase(model, glob):
            return window
    name = model.lower().rpartition("/")[2]
    return next((window for glob, window in WINDOWS.items() if fnmatchcase(name, glob)), DEFAULT_WINDOW)
