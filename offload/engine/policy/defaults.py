"""Named policies, and the defaults of every policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from offload.base.schema import merge
from offload.engine.policy._rules import Rule
from offload.engine.policy.cost import LEFT_ALONE, RESULT_LEFT_ALONE
from offload.engine.policy.facts import PolicyName
from offload.errors import PolicyError, did_you_mean
from offload.records.record.header import OffloadableType

# Threshold of tool results in the default policy.
DEFAULT_MIN_TOKENS = 1500
NEVER = Rule(enabled=False)
MEDIA = Rule(min_tokens=500, after_replies=1)
# Chosen by the cost of whole sessions, read-backs included (benchmarks/bench_cost.py). The model quotes files
# and its own arguments when it edits; a user message may be the task.
TYPES: dict[OffloadableType, Rule] = {
    "tool_result": Rule(min_tokens=DEFAULT_MIN_TOKENS),
    "tool_call": Rule(after_replies=LEFT_ALONE, preview_chars=300),
    "user_message": Rule(after_replies=LEFT_ALONE),
    "skill_prompt": Rule(after_replies=LEFT_ALONE),
    "assistant_message": NEVER,
    "compaction_summary": NEVER,
    "system_prompt": NEVER,
}
# An edit quotes a file exactly, so a file is kept while the model works on it.
READERS = Rule(min_tokens=DEFAULT_MIN_TOKENS, after_replies=LEFT_ALONE)
# The model reads the answer of a retrieval tool in full first. The records have its text, so its placeholder
# needs no preview.
ANSWERS = Rule(min_tokens=200, after_replies=RESULT_LEFT_ALONE, preview_chars=0)

# Where all is offloaded sooner, and where what may be quoted is kept for longer.
_SOON, _LONG = 5, 40
_SEEN: dict[str, Any] = {"after_replies": 1}
THRESHOLDS = {"min_tokens", "min_chars", "min_bytes"}
_SMALL_PREVIEW = {"min_tokens": 500, "preview_chars": 400}
_ANY = {"min_tokens": DEFAULT_MIN_TOKENS}
# Plain data, so that a caller can change single fields of a named policy.
_POLICIES: dict[PolicyName, dict[str, Any]] = {
    "balanced": {
        "tool_media": MEDIA,
        "file_readers": {**_ANY, "after_replies": LEFT_ALONE},
        "cost_plan": "small",
    },
    "economy": {
        "tool_media": MEDIA,
        "file_readers": {**_ANY, "after_replies": _SOON},
        "types": {
            "tool_call": {"after_replies": _SOON, "preview_chars": 300},
            "user_message": {"after_replies": _SOON},
            "skill_prompt": {"after_replies": _SOON},
        },
        "cost_plan": "all",
    },
    "verbatim": {
        "tool_media": MEDIA,
        "answers": ANSWERS.model_copy(update={"after_replies": LEFT_ALONE}),
        "file_readers": {**_ANY, "after_replies": _LONG},
        "types": {
            "tool_result": {**_ANY, "after_replies": 1},
            "tool_call": {"after_replies": _LONG, "preview_chars": 300},
            "user_message": {"after_replies": _LONG},
            "skill_prompt": {"after_replies": _LONG},
        },
        "cost_plan": "small",
    },
    "archive": {
        "tool_media": MEDIA,
        "types": {
            "tool_result": _SMALL_PREVIEW,
            "user_message": _SMALL_PREVIEW | _SEEN,
            "skill_prompt": _SMALL_PREVIEW | _SEEN,
            "assistant_message": _SMALL_PREVIEW | _SEEN,
            "tool_call": _SMALL_PREVIEW | _SEEN,
        },
    },
}


def _without_thresholds(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` without the threshold of each rule that gets another one."""
    given = not THRESHOLDS.isdisjoint(changes)
    return {
        name: _without_thresholds(value, changed)
        if isinstance(value, Mapping) and isinstance(changed := changes.get(name), Mapping)
        else value
        for name, value in data.items()
        if not (given and name in THRESHOLDS)
    }


def named_policy(name: object, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a named policy with `changes`. Raises `PolicyError` for an unknown name."""
    for known, data in _POLICIES.items():
        if known == name:
            return merge(_without_thresholds(data, changes), changes)
    names = get_args(PolicyName)
    hint = did_you_mean(name, names)
    raise PolicyError(f"preset must be one of {', '.join(names)}, got {name!r:.60}{hint}")
