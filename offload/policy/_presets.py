"""Policies by name, and the defaults that every policy is completed with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from offload.errors import PolicyError
from offload.policy._rules import Rule
from offload.record import ItemType

Preset = Literal["balanced", "aggressive", "archive"]

# Threshold of tool results in the default policy.
DEFAULT_MIN_TOKENS = 1500
NEVER = Rule(enabled=False)
MEDIA = Rule(min_tokens=500, after_turns=1)
# Chosen by what whole sessions cost (benchmarks/bench_savings.py), read backs included. A user's text is
# seen once before it goes: it may be the task itself. So are the large arguments of a call, a file that
# the model wrote, say: it knows what it wrote when it gets the result.
TYPES: dict[ItemType, Rule] = {
    "tool_result": Rule(min_tokens=DEFAULT_MIN_TOKENS),
    "tool_call": Rule(after_turns=1, preview_chars=300),
    "user_message": Rule(after_turns=1),
    "skill_prompt": Rule(after_turns=1),
    "assistant_message": NEVER,
    "compaction_summary": NEVER,
    "system_prompt": NEVER,
}
# What a model asked to see in full it should see in full once: hiding a file that was just opened
# costs a read back every time, and leaving it for good costs most of the saving.
READERS = Rule(min_tokens=DEFAULT_MIN_TOKENS, after_turns=1)

_LARGE, _SMALL_PREVIEW = {"min_tokens": 1000}, {"min_tokens": 500, "preview_chars": 400}
_SEEN = {"after_turns": 1}
# Plain data, so that what a caller adds to a preset can be laid over it field by field.
_PRESETS: dict[Preset, dict[str, Any]] = {
    "balanced": {"media": MEDIA, "readers": READERS},
    "aggressive": {
        "media": MEDIA,
        "types": {
            "tool_result": _LARGE,
            "tool_call": {"min_tokens": 500, "after_turns": 1, "preview_chars": 300},
            "user_message": _LARGE | _SEEN,
            "skill_prompt": _LARGE | _SEEN,
        },
        "readers": _LARGE | _SEEN,
    },
    "archive": {
        "media": MEDIA,
        "types": {
            "tool_result": _SMALL_PREVIEW,
            "user_message": _SMALL_PREVIEW | _SEEN,
            "skill_prompt": _SMALL_PREVIEW | _SEEN,
            "assistant_message": _SMALL_PREVIEW | _SEEN,
            "tool_call": _SMALL_PREVIEW | _SEEN,
        },
    },
}


def preset_data(name: object, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the preset called `name` with `changes` laid over them.

    Raises `PolicyError` if there is no such preset.
    """
    for known, data in _PRESETS.items():
        if known == name:
            return _laid_over(data, changes)
    raise PolicyError(f"preset is one of {', '.join(get_args(Preset))}, not {name!r:.60}")


def _laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = _laid_over(cast("Mapping[str, Any]", old), value) if both else value
    return merged
