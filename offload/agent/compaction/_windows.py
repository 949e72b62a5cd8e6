"""Context windows of models, and the compaction thresholds for them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from offload.errors import ConfigError

_log = logging.getLogger("offload")

TRIGGER_RATIO = 0.8
DEFAULT_WINDOW = 128_000

# The input window of each family, by its provider's page of models: docs.claude.com, platform.openai.com,
# ai.google.dev and api-docs.deepseek.com; the smallest window if members differ. The first match wins. Only
# whole parts of a name match, so an unknown version is not mistaken for another one.
_WINDOWS: Mapping[str, int] = {
    r"claude-v2:1": 200_000,
    r"claude-(?:v?[12](?:\.[03])?|instant)": 100_000,
    r"claude-(?:opus|sonnet)-4-[6-9]|claude-haiku-5-5": 1_000_000,
    r"claude-(?:opus|sonnet|fable|mythos)-5(?:-\d)?": 1_000_000,
    r"claude": 200_000,
    r"gpt-5(?:\.\d+)?-chat|gpt-5-pro": 128_000,
    # 128,000 of the documented 1,050,000 or 400,000 are for the answer.
    r"gpt-(?:5\.[456]|6(?:\.\d+)?)(?!-(?:mini|nano|cyber|image))": 922_000,
    r"gpt-5(?:\.\d+)?": 272_000,
    r"gpt-4\.5": 128_000,
    r"gpt-4\.1": 1_047_576,
    r"gpt-4o-mini-realtime": 16_000,
    r"gpt-4o-realtime": 32_000,
    r"(?:chat)?gpt-4o|gpt-4-turbo|gpt-4-(?:[a-z0-9]+-)*preview": 128_000,
    r"gpt-4-32k": 32_768,
    r"gpt-4": 8_192,
    r"gpt-3\.?5-turbo-(?:instruct|0301|0613)": 4_096,
    r"gpt-3\.?5": 16_385,
    r"gpt-oss": 131_072,
    r"(?<!-)o1-(?:mini|preview)": 128_000,
    r"(?<!-)o[134]": 200_000,
    r"gemini-[0-9.]+-(?:flash|pro)(?:-preview)?-image": 32_768,
    r"gemini-(?:1\.5|[2-9](?:\.\d+)?)|gemini-(?:pro|flash|flash-lite)-latest": 1_048_576,
    r"gemini-(?:1\.0-)?pro-vision": 12_288,
    r"gemini-(?:1\.0-)?pro": 30_720,
    r"deepseek[.-](?:flash|v4-(?:flash|pro))": 1_000_000,
    r"deepseek[.-](?:chat|reasoner|r1|v[3-9](?:\.\d+)?)": 128_000,
}
_KNOWN = [(re.compile(rf"(?<![a-z0-9])(?:{name})(?![a-z0-9.])"), n) for name, n in _WINDOWS.items()]


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
    name = model.lower().rpartition("/")[2]
    known = next((window for pattern, window in _KNOWN if pattern.search(name)), None)
    if known is None:
        _log.warning("unknown model %r: assuming a window of %d tokens", model, DEFAULT_WINDOW)
    return known or DEFAULT_WINDOW
