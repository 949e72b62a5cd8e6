"""Policies: pure functions from facts about an item to a decision, offload or keep, with its reason.

    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=3000)}, exclude_tools=("read_*",))
    policy.decide(facts).reason

The first glob in `tools` that matches the tool's name gives the rule, else the item type does. Globs ignore
case, since agents name the same tool `Read` or `read`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offload.policy._cost import Candidate, CostPlan
from offload.policy._facts import ByCost, Decision, ItemFacts, Readers, explain
from offload.policy._groups import excess, over_budget, over_ceiling, saving, swept
from offload.policy._models import MODELS, HistoryRule, KnownModels, binds_thinking
from offload.policy._tool_names import RETRIEVAL_TOOLS, TOOL_NAMES, is_read_back, words_of

if TYPE_CHECKING:
    from offload.policy._cache import CACHES, CacheModel, KnownCache
    from offload.policy._defaults import DEFAULT_MIN_TOKENS, PolicyName
    from offload.policy._policy import MAX_VIEW_TOKENS, OffloadPolicy, matches_any, with_rules
    from offload.policy._rules import Retention, Rule, Sweep

__all__ = [
    "CACHES",
    "DEFAULT_MIN_TOKENS",
    "MAX_VIEW_TOKENS",
    "MODELS",
    "RETRIEVAL_TOOLS",
    "TOOL_NAMES",
    "ByCost",
    "CacheModel",
    "Candidate",
    "CostPlan",
    "Decision",
    "HistoryRule",
    "ItemFacts",
    "KnownCache",
    "KnownModels",
    "OffloadPolicy",
    "PolicyName",
    "Readers",
    "Retention",
    "Rule",
    "Sweep",
    "binds_thinking",
    "excess",
    "explain",
    "is_read_back",
    "matches_any",
    "over_budget",
    "over_ceiling",
    "saving",
    "swept",
    "with_rules",
    "words_of",
]

# Loading pydantic takes longer than the rest of the library; the first policy does.
_MODELS = {
    "_cache": ("CACHES", "CacheModel", "KnownCache"),
    "_defaults": ("DEFAULT_MIN_TOKENS", "PolicyName"),
    "_policy": ("MAX_VIEW_TOKENS", "OffloadPolicy", "matches_any", "with_rules"),
    "_rules": ("Retention", "Rule", "Sweep"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODELS.items():
        if name in names:
            return getattr(import_module(f"offload.policy.{module}"), name)
    raise AttributeError(f"module 'offload.policy' has no attribute {name!r}")
