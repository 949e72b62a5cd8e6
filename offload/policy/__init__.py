"""What is offloaded and what is kept: a pure function of facts about an item, with its reason.

    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=3000)}, exclude_tools=("read_*",))
    policy.decide(facts).reason

A rule is found by tool first (first matching glob), then by item type. Globs are compared without regard
to case, since one tool is `Read` to one agent and `read` to the next.
"""

from offload.policy._facts import Action, Decision, ItemFacts, explain
from offload.policy._policy import MAX_VIEW_TOKENS, OffloadPolicy, Readers
from offload.policy._presets import DEFAULT_MIN_TOKENS, Preset
from offload.policy._rules import Retention, Rule, Sweep
from offload.policy._together import excess, over_budget, over_ceiling, saving, swept
from offload.policy._tool_names import TOOL_NAMES

__all__ = [
    "DEFAULT_MIN_TOKENS",
    "MAX_VIEW_TOKENS",
    "TOOL_NAMES",
    "Action",
    "Decision",
    "ItemFacts",
    "OffloadPolicy",
    "Preset",
    "Readers",
    "Retention",
    "Rule",
    "Sweep",
    "excess",
    "explain",
    "over_budget",
    "over_ceiling",
    "saving",
    "swept",
]
