"""Policies: pure functions from facts about an item to a decision, offload or keep, with its reason.

    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=3000)}, exclude_tools=("read_*",))
    print(policy.decide(facts).reason)

The first glob in `tools` that matches the tool's name gives the rule, else the item type does. Globs ignore
case, since agents name the same tool `Read` or `read`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offload.errors import ConfigError

if TYPE_CHECKING:
    from offload.engine.policy._rules import Retention, Rule, Sweep
    from offload.engine.policy.cache import CacheModel
    from offload.engine.policy.facts import Decision, ItemFacts, PolicyName, explain
    from offload.engine.policy.policy import OffloadPolicy
    from offload.engine.policy.reasons import Reason, ReasonKind

__all__ = [
    "CacheModel",
    "Decision",
    "ItemFacts",
    "OffloadPolicy",
    "Reason",
    "ReasonKind",
    "Retention",
    "Rule",
    "Sweep",
    "explain",
]

# Loading pydantic takes longer than the rest of the library; the first policy does. A hook that runs as a
# command needs the names of the retrieval tools alone.
_MODULES = {
    "cache": ("CacheModel",),
    "facts": ("Decision", "ItemFacts", "explain"),
    "policy": ("OffloadPolicy",),
    "reasons": ("Reason", "ReasonKind"),
    "_rules": ("Retention", "Rule", "Sweep"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"offload.engine.policy.{module}"), name)
    raise AttributeError(f"module 'offload.engine.policy' has no attribute {name!r}")


def policy_of(policy: OffloadPolicy | PolicyName | None = None) -> OffloadPolicy:
    """Return the policy of an argument: the named one, or the default for None. Raises `ConfigError`."""
    model: type[OffloadPolicy] = __getattr__("OffloadPolicy")
    if policy is None:
        return model()
    if isinstance(policy, str):
        return model.preset(policy)
    if not isinstance(policy, model):
        raise ConfigError(
            f"policy must be an OffloadPolicy or the name of one, got {type(policy).__name__}; "
            "a dict of its fields goes to OffloadPolicy.model_validate"
        )
    return policy
