"""The policy: which rule an item falls under, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from offload.errors import ConfigError, PolicyError
from offload.policy._facts import Action, Decision, ItemFacts
from offload.policy._presets import MEDIA, NEVER, READERS, TYPES, Preset, preset_data
from offload.policy._rules import Retention, Rule, Sweep
from offload.policy._tool_names import TOOL_NAMES, is_reader
from offload.record import ItemType
from offload.settings import Count, LoadableSettings, Size

# One turn takes no more than a fifth of a window of 200,000 tokens. Readers of files cap themselves at
# 25,000; of 3,181 recorded turns the largest brought 32,000.
MAX_VIEW_TOKENS = 40_000
Readers = Literal["offload", "keep"]


class OffloadPolicy(LoadableSettings):
    """Which items are offloaded.

    Placeholders, pinned and pending items, what code reads and the answers of the read-back tools are
    never offloaded, whatever the rules; errors only above `max_view_tokens`.

    Attributes:
        types: rules by item type; types that are not named keep their default.
        tools: rules by tool name, as globs, compared without regard to case; the first that matches
            wins, and a rule by tool wins over one by type.
        exclude_tools: globs of tools whose results always stay.
        readers: the rule for file readers and browsers that no glob of `tools` matches, told by the whole
            words of a tool's name, as `read` in `NotebookRead` and `mcp__fs__read_text`. By default they are
            offloaded once the model has seen the result in full; a policy that names its own `types` or
            `tools` is taken at its word and has no such default, and names of its own `types` end that for
            images too.
        max_view_tokens: how many tokens a text may take that the model is to read, and the new texts of one
            turn together: above it they leave before the model sees them, the largest first, errors and
            file reads too. What no rule lets go stays, as do the system prompt and what is excluded, pinned
            or read by code; of each that is larger the errors of the call tell. Images and documents, whose
            tokens are an estimate, are not bound by it. None sets no limit.
        turn_budget_tokens: how many tokens the tool results of one turn may take together that are each
            below their threshold; above it the largest go first. None sets no limit.
        media: the rule for images and documents in tool results. No tool shows them again, so they are to be
            seen before they leave; no budget of a turn and no sweep takes them.
        user_media: the same for those that a user gives, which stay unless this says otherwise.
        min_saving: tokens that an offload must free, the placeholder counted.
        sweep: when a conversation that has grown too long is swept; None never does.
        retention: what a collection takes beside records whose time to live is over.
    """

    _error: ClassVar[type[ConfigError]] = PolicyError
    _table: ClassVar = ("tool", "offload", "policy")
    _variable: ClassVar = "OFFLOAD_POLICY"

    types: dict[ItemType, Rule] = Field(default_factory=dict)
    tools: dict[str, Rule] = Field(default_factory=dict)
    exclude_tools: tuple[str, ...] = ()
    readers: Rule | None = None
    max_view_tokens: Size | None = MAX_VIEW_TOKENS
    turn_budget_tokens: Size | None = None
    media: Rule = NEVER
    user_media: Rule = NEVER
    min_saving: Count = 100
    sweep: Sweep | None = None
    retention: Retention = Retention()

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Complete what was given; a `preset` among it names the policy that it starts from."""
        if not isinstance(data, dict):
            return data
        if "preset" in data:
            changes = {name: value for name, value in data.items() if name != "preset"}
            data = preset_data(data["preset"], changes)
        readers = None if "types" in data or "tools" in data else READERS
        media = NEVER if "types" in data else MEDIA
        types = data.get("types", {})
        if not isinstance(types, dict):
            return data
        return {"readers": readers, "media": media, **data, "types": {**TYPES, **types}}

    @classmethod
    def preset(cls, name: Preset) -> Self:
        """Return a policy by name.

        Args:
            name: "balanced" is the default: what a model asked to see it sees once in full; "aggressive" has
                lower thresholds; "archive" keeps nothing large.

        Raises:
            PolicyError: no preset has this name.
        """
        return cls.model_validate({"preset": name})

    @cached_property
    def counts_bytes(self) -> bool:
        """Whether a rule has a threshold in bytes, which take a pass over a text to count."""
        rules = (*self.types.values(), *self.tools.values(), self.readers)
        return any(rule is not None and rule.min_bytes is not None for rule in rules)

    @property
    def never_replaced(self) -> tuple[str, ...]:
        """Item types that keep whatever they hold: a system prompt, unless this policy offloads it."""
        return () if self.types["system_prompt"].enabled else ("system_prompt",)

    def decide(self, item: ItemFacts, *, readers: Readers = "keep") -> Decision:
        """Return what becomes of `item` by itself. Pure: the same facts give the same decision always.

        What is kept for its size alone may still leave with others, by the budget of a turn or a sweep.

        Args:
            item: what is known of it.
            readers: "offload" treats file readers as other tools, where nothing could take their result
                later.
        """
        rule = self._rule(item, readers)
        kept = self._why_kept(rule, item)
        is_exempt = kept is not None or item.media_type is not None
        shortfall = rule.shortfall(item)
        if kept is not None:
            action, reason = "keep", kept
        elif self._is_above(item) and not is_exempt:
            above = f"{item.tokens} tokens, above max_view_tokens ({self.max_view_tokens})"
            action, reason = "offload", above
        else:
            action, reason = _judge(rule, item, shortfall)
        return Decision(
            item=item,
            action=cast("Action", action),
            reason=reason,
            preview_chars=rule.preview_chars,
            ref=None,
            tokens_after=item.tokens,
            ttl=rule.ttl,
            is_below=reason is shortfall and item.media_type is None,
            is_exempt=is_exempt,
        )

    def _is_above(self, item: ItemFacts) -> bool:
        return self.max_view_tokens is not None and item.tokens > self.max_view_tokens

    def _why_kept(self, rule: Rule, item: ItemFacts) -> str | None:
        """Return why an item stays whatever its size, None if it need not."""
        for is_kept, reason in (
            (item.is_stored, "a placeholder already"),
            (item.is_programmatic, "read by code"),
            (item.is_pinned, "pinned"),
            (item.is_pending, "not finished yet"),
            (item.tool_name in TOOL_NAMES, "an answer that was read back"),
            (_matches_any(item.tool_name, self.exclude_tools), f"{item.tool_name} is in exclude_tools"),
            (not rule.enabled, f"{item.media_type or item.item_type} is not offloaded by this policy"),
        ):
            if is_kept:
                return reason
        return None

    def _rule(self, item: ItemFacts, readers: Readers) -> Rule:
        if item.media_type is not None:
            return self.media if item.item_type == "tool_result" else self.user_media
        if item.tool_name is not None and item.item_type == "tool_result":
            for glob, rule in self.tools.items():
                if _matches(item.tool_name, glob):
                    return rule
            if self.readers is not None and readers == "keep" and is_reader(item.tool_name):
                return self.readers
        return self.types.get(cast("ItemType", item.item_type), NEVER)


def _judge(rule: Rule, item: ItemFacts, shortfall: str | None) -> tuple[Action, str]:
    is_seen = item.answers >= rule.after_turns
    if item.was_stored and (is_seen or item.is_standing):
        return "offload", "left before, and stays away"
    if item.is_error and not item.was_stored:
        return "keep", "errors stay in view"
    if shortfall is not None and not item.was_stored:
        return "keep", shortfall
    if not is_seen:
        return "wait", f"goes after the model has answered {rule.after_turns} x with it in view"
    if item.newer < rule.keep_recent:
        return "wait", f"one of the last {rule.keep_recent} of its tool"
    return "offload", f"{item.tokens} tokens"


def _matches_any(name: str | None, globs: Iterable[str]) -> bool:
    return name is not None and any(_matches(name, glob) for glob in globs)


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name.lower(), glob.lower())
