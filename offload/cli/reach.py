"""Ways to place the library between a coding agent and its model, and what each of them can replace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from offload import Decision, OffloadPolicy, Rule
from offload.cli.terminal import count
from offload.engine.policy.defaults import DEFAULT_MIN_TOKENS
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS

Way = Literal["claude-agent-sdk", "mcp-proxy", "gateway"]

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Reach:
    """The items that a way can replace.

    Attributes:
        policy: the policy with the same effect.
        covered: the items that it can replace.
        uncovered: the items that it cannot.
        needed: an item without which a conversation cannot be made smaller.
    """

    policy: OffloadPolicy
    covered: str
    uncovered: str
    needed: str


def reach_of(way: Way) -> Reach:
    """Return what a way can replace."""
    match way:
        case "claude-agent-sdk":
            return Reach(
                _at_append("Bash", "WebFetch", "WebSearch", "Agent", "Task", "mcp__*"),
                f"{_RESULTS} Bash, web tools, subagents and MCP tools, before the model sees them",
                "file reads, failed calls, prompts, tool-call arguments, results that Claude Code truncated",
                "a large result of Bash, a web tool, a subagent or an MCP tool",
            )
        case "mcp-proxy":
            return Reach(
                _at_append("mcp__*"),
                f"{_RESULTS} MCP tools (mcp__*), before the model sees them, if each server is wrapped",
                "the agent's own tools, failed calls, prompts, and tool-call arguments",
                "a large result of an MCP tool (mcp__*)",
            )
        case "gateway":
            return Reach(
                OffloadPolicy().once_seen(),
                "tool results and arguments that the default policy offloads, after the model saw them, if "
                "that lowers the cost",
                "prompts, texts of replies, images, and the newest results up to the ceiling",
                "a result that is worth replacing",
            )


_RESULTS = f"results of {DEFAULT_MIN_TOKENS:,} tokens or more of"


def _at_append(*tools: str) -> OffloadPolicy:
    """Return a policy that offloads large results of these tools at once, but no errors and no read-backs."""
    return OffloadPolicy(
        types={name: Rule(enabled=False) for name in OffloadPolicy().types},
        tools=dict.fromkeys(tools, Rule(min_tokens=DEFAULT_MIN_TOKENS)),
        exclude_tools=tuple(f"*{name}" for name in RETRIEVAL_TOOLS),
        max_view_tokens=None,
    )


@dataclass(slots=True)
class Tally:
    """Numbers of large items that a way replaces and keeps, by tool, or by type without a tool.

    Attributes:
        replaced: those it replaces.
        kept: those it keeps.
    """

    replaced: Counter[str]
    kept: Counter[str]

    def add(self, decision: Decision) -> None:
        """Count an item if it is large."""
        item = decision.item
        if item.tokens >= DEFAULT_MIN_TOKENS:
            counter = self.kept if decision.ref is None else self.replaced
            counter[(item.item_type == "tool_result" and item.tool_name) or item.item_type] += 1


def sentences(way: Way, tally: Tally) -> Iterator[str]:
    """Yield sentences about what a way can replace, and what it replaces here."""
    reach = reach_of(way)
    yield f"{way} covers {reach.covered}."
    yield f"Not covered: {reach.uncovered}."
    if not tally.replaced:
        yield f"No conversation has {reach.needed}: {way} would replace nothing here."
    total = tally.replaced.total() + tally.kept.total()
    if total:
        yield (
            f"Of {count(total, 'item')} of {DEFAULT_MIN_TOKENS:,} tokens or more it replaces "
            f"{_listed(tally.replaced)}, and keeps {_listed(tally.kept)}."
        )


def _listed(numbers: Mapping[str, int]) -> str:
    """Return a total with its largest parts, as "12 (Bash 9, WebFetch 3)"."""
    largest = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{name} {number:,}" for name, number in largest[:_NAMED]]
    rest = sum(number for _, number in largest[_NAMED:])
    parts += [f"others {rest:,}"] if rest else []
    return f"{sum(numbers.values()):,}" + (f" ({', '.join(parts)})" if parts else "")
