"""Named policies, and the defaults of every policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from offload.errors import PolicyError, did_you_mean
from offload.policy._rules import Rule
from offload.policy.facts import PolicyName
from offload.record.header import OffloadableType
from offload.schema import merge

# Threshold of tool results in the default policy.
DEFAULT_MIN_TOKENS = 1500
NEVER = Rule(enabled=False)
MEDIA = Rule(min_tokens=500, after_turns=1)
# Chosen by the cost of whole sessions, read back included (benchmarks/bench_cost.py). The model sees a
# user message once, since it may be the task, and its own tool-call arguments until it gets the result.
TYPES: dict[OffloadableType, Rule] = {
    "tool_result": Rule(min_tokens=DEFAULT_MIN_TOKENS),
    "tool_call": Rule(after_turns=1, preview_chars=300),
    "user_message": Rule(after_turns=1),
    "skill_prompt": Rule(after_turns=1),
    "assistant_message": NEVER,
    "compaction_summary": NEVER,
    "system_prompt": NEVER,
}
# The model sees files and pages in full once: hiding a file that it just opened costs a read every time, and
# keeping it costs most of the saving.
READERS = Rule(min_tokens=DEFAULT_MIN_TOKENS, after_turns=1)
# The model reads the answer of a retrieval tool in full first. The records have its text, so its placeholder
# needs no preview.
ANSWERS = Rule(min_tokens=200, after_turns=3, preview_chars=0)

_SEEN: dict[str, Any] = {"after_turns": 1}
_SMALL_PREVIEW = {"min_tokens": 500, "preview_chars": 400}
_ANY = {"min_tokens": DEFAULT_MIN_TOKENS}
# Plain data, so that a caller can change single fields of a named policy.
_POLICIES: dict[PolicyName, dict[str, Any]] = {
    "balanced": {"media": MEDIA, "readers": READERS, "by_cost": "small"},
    # The thresholds are those of single texts.
    "economy": {
        "media": MEDIA,
        "types": {
            "tool_result": _ANY,
            "tool_call": _ANY,
            "user_message": _ANY | _SEEN,
            "skill_prompt": _ANY | _SEEN,
        },
        "by_cost": "all",
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


def named_policy(name: object, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a named policy with `changes`. Raises `PolicyError` for an unknown name."""
    for known, data in _POLICIES.items():
        if known == name:
            return merge(data, changes)
    names = get_args(PolicyName)
    hint = did_you_mean(name, names)
    raise PolicyError(f"preset must be one of {', '.join(names)}, got {name!r:.60}{hint}")
