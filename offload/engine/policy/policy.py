"""Policies, and their choice of a rule for an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from offload.base.schema import Count, LoadableSettings, Size
from offload.base.text import encode_text
from offload.base.threads.locks import cached
from offload.engine.policy._rules import Retention, Rule, Sweep
from offload.engine.policy.cache import CacheModel, fields_of
from offload.engine.policy.defaults import ANSWERS, MEDIA, NEVER, READERS, THRESHOLDS, TYPES, named_policy
from offload.engine.policy.facts import CostPlanItems, Decision, ItemFacts, PolicyName, Readers
from offload.engine.policy.judging import KEPT_CHARS, ItemLimits, judge
from offload.engine.policy.models import HistoryRule
from offload.engine.policy.tool_names import matches, shows_file
from offload.errors import ConfigError, PolicyError
from offload.records.record.header import OffloadableType
from offload.records.record.retrieval import LIST, is_answer

# A fifth of a window of 200,000 tokens. File readers limit themselves to 25,000, and the largest of 3,181
# recorded turns had 32,000.
MAX_VIEW_TOKENS = 40_000
# A user message may be the task. With so many characters for each reply that its rule waits, four times
# those of a file that is kept, it is data that was pasted.
PASTED_CHARS = 4 * KEPT_CHARS
_AT_ONCE: Mapping[str, int] = {"after_replies": 0, "keep_recent": 0}
P = TypeVar("P", bound="OffloadPolicy")


class OffloadPolicy(LoadableSettings):
    """Rules that decide which items are offloaded.

    No rule offloads placeholders, pinned items, unfinished items or results that code reads; errors are
    offloaded above `max_view_tokens`, or by `cost_plan`.

    Attributes:
        types: rules by item type; other types keep their default rule.
        tools: rules by tool name. The names are globs that ignore case; the first match wins, and a rule
            for the tool wins over one for the type.
        exclude_tools: globs of tools whose results are always kept.
        file_readers: the rule for file readers and browsers that no glob of `tools` matches, known by a word
            in the tool's name: `read` in `NotebookRead` and `mcp__fs__read_text`. It applies to tools
            that edit files too. The default keeps their results while the model works on the file; a policy
            that sets `types` or `tools` has no default here, and one that sets `types` none for images.
        answers: the rule for answers of the retrieval tools that show content, under any prefix of a client.
            The model always sees an answer in full first, so `after_replies` must be at least 1; it counts
            from the last call that reads the same item. A policy that offloads no tool results offloads none.
        max_view_tokens: maximum tokens of one text that the model reads, and of the new texts of one turn
            together. Texts above it are offloaded before the model sees them, the largest first, including
            errors and file reads. The system prompt and items that are excluded, pinned, disabled by a rule
            or read by code are kept; the errors of the call name each that is larger. Images and documents
            do not count, since their tokens are estimates. None is unlimited.
        tool_media: the rule for images and documents in tool results. No tool shows them again, so the model
            should see them first; sweeps never offload them.
        user_media: the rule for images and documents of the user, which are kept by default.
        min_saving: keep an item if replacing it by its placeholder frees fewer tokens than this.
        sweep: when to sweep a long conversation; None is never.
        retention: quotas and grace period of `gc`.
        cache: prices of the provider's prompt cache, or the name of a model with these, see `CacheModel`. An
            `Offloader` takes those of its model, unless they are given.
        history: whether messages that were sent may change later. "append_only": never, since the thinking of
            some models is bound to what was sent before it; an item is offloaded before it is first sent, or
            never. "editable": items may be offloaded after the model saw them. "auto" is append-only as soon
            as a signed block of thinking is in the conversation, unless its model is known to allow edits.
            "rewrite" offloads items later in any conversation; where a model binds its thinking, that after
            the first change is removed and stored.
        cost_plan: which items `Offloader.offload` offloads when that is expected to lower the input cost:
            "small" results and arguments, below the threshold of their rule, and errors; "all", of any size;
            or "none". What the model has seen is then offloaded in batches that pay, and `after_replies`
            counts the replies since the last use of an item's file. Its preview has at most 300 characters,
            of what the model wrote at most an eighth; of files that can only be offloaded unseen it has three
            times `preview_chars`, and their names follow it.
            The default is "small"; for a policy that sets `types` or `tools` it is "none".
    """

    _error: ClassVar[type[ConfigError]] = PolicyError
    _table: ClassVar = ("tool", "offload", "policy")
    _variable: ClassVar = "OFFLOAD_POLICY"

    types: dict[OffloadableType, Rule] = Field(default_factory=dict)
    tools: dict[str, Rule] = Field(default_factory=dict)
    exclude_tools: tuple[str, ...] = ()
    file_readers: Rule | None = None
    answers: Rule = ANSWERS
    max_view_tokens: Size | None = MAX_VIEW_TOKENS
    tool_media: Rule = NEVER
    user_media: Rule = NEVER
    min_saving: Count = 100
    sweep: Sweep | None = None
    retention: Retention = Retention()
    cache: CacheModel = CacheModel()
    history: HistoryRule = "auto"
    cost_plan: CostPlanItems = "none"

    if TYPE_CHECKING:
        # Checkers would take the type of `cache` from the field, which accepts no name.
        def __init__(
            self,
            *,
            types: Mapping[OffloadableType, Rule] | Mapping[str, Rule] = ...,
            tools: Mapping[str, Rule] = ...,
            exclude_tools: Sequence[str] = (),
            file_readers: Rule | None = None,
            answers: Rule = ...,
            max_view_tokens: int | None = MAX_VIEW_TOKENS,
            tool_media: Rule = ...,
            user_media: Rule = ...,
            min_saving: int = 100,
            sweep: Sweep | None = None,
            retention: Retention = ...,
            cache: CacheModel | str | Mapping[str, Any] = ...,
            history: HistoryRule = "auto",
            cost_plan: CostPlanItems = "none",
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Add the defaults, or the fields of the `preset` that `data` is or names."""
        if isinstance(data, str):
            data = {"preset": data}
        if not isinstance(data, dict):
            return data
        if "preset" in data:
            changes = {name: value for name, value in data.items() if name != "preset"}
            data = named_policy(data["preset"], changes)
        is_default = "types" not in data and "tools" not in data
        file_readers, cost_plan = (READERS, "small") if is_default else (None, "none")
        media = NEVER if "types" in data else MEDIA
        types = data.get("types", {})
        if not isinstance(types, dict):
            return data
        named = {
            "file_readers": file_readers,
            "tool_media": media,
            "cost_plan": cost_plan,
            **data,
            "types": {**TYPES, **types},
        }
        if "answers" not in data and not _is_enabled(types.get("tool_result")):
            named["answers"] = NEVER
        return named

    @model_validator(mode="after")
    def _shows_answers(self) -> Self:
        if self.answers.enabled and not self.answers.after_replies:
            raise ValueError(
                "answers: after_replies must be at least 1, got 0: the model would ask again and again"
            )
        return self

    @classmethod
    def preset(cls, name: PolicyName) -> Self:
        """Return a policy by name.

        Args:
            name: "balanced" is the default: what the model works on is kept until it was left alone;
                "economy" offloads sooner, and items of any size if that is expected to lower the input cost;
                "verbatim" keeps what an edit may quote for longest; "archive" offloads everything large, the
                model's replies too: the smallest context, but often not the lowest cost.

        Raises:
            PolicyError: there is no preset of this name.
        """
        return cls.model_validate({"preset": name})

    @cached
    def counts_bytes(self) -> bool:
        """Whether a rule has a threshold in bytes; counting them takes a pass over the text."""
        rules = (*self.types.values(), *self.tools.values(), self.file_readers)
        return any(rule is not None and rule.min_bytes is not None for rule in rules)

    def bytes_of(self, text: str) -> int:
        """Return the size of a text for the rules with a threshold in bytes."""
        return len(encode_text(text))

    def cache_for(self, model: str | None, kept_for: int | None = None) -> CacheModel:
        """Return the prompt cache of requests to a model, unless one was given.

        They ask for a lifetime of `kept_for` seconds; None is the usual one. Without a known price of the
        model, the cache is that of this policy.
        """
        fields = None if "cache" in self.model_fields_set else fields_of(model, kept_for)
        if fields is not None:
            return CacheModel(**fields, marks=self.cache.marks)
        return self.cache if kept_for is None else self.cache.model_copy(update={"ttl": kept_for})

    def for_model(self, model: str | None) -> Self:
        """Return this policy with the prompt cache of a model, which is not given by that."""
        cache = self.cache_for(model)
        if cache == self.cache:
            return self
        policy = self.model_copy(update={"cache": cache})
        policy.model_fields_set.discard("cache")
        return policy

    @property
    def never_replaced(self) -> tuple[str, ...]:
        """Item types whose texts are never placeholders: system prompts, unless this policy offloads them."""
        return () if self.types["system_prompt"].enabled else ("system_prompt",)

    def at_once(self) -> Self:
        """Return a policy that offloads at once what this one offloads at any time for its size.

        Its result is stored and not sent, so every message may change.
        """

        def now(rule: Rule) -> Rule:
            return rule.model_copy(update=_AT_ONCE)

        changes = {
            "file_readers": None if self.file_readers is None else now(self.file_readers),
            "answers": NEVER,
            "tool_media": now(self.tool_media),
            "user_media": now(self.user_media),
            "max_view_tokens": None,
            "sweep": None,
            "cost_plan": "none",
            "history": "editable",
        }
        return with_rules(self, now, changes)

    def once_seen(self) -> Self:
        """Return a policy that offloads tool results and arguments, none before the model's next reply.

        Reports of background tasks are offloaded at once, and user messages only above the ceiling. The
        retrieval tools are known under any prefix, since clients add one to the names of their tools.
        """

        def seen(rule: Rule) -> Rule:
            return rule.model_copy(update={"after_replies": max(1, rule.after_replies)})

        ceiling = self.max_view_tokens
        changes = {
            "types": {
                **dict.fromkeys(self.types, NEVER),
                "tool_result": seen(self.types["tool_result"]),
                "tool_call": seen(self.types["tool_call"]),
                "user_message": NEVER if ceiling is None else Rule(min_tokens=ceiling + 1),
            },
            "file_readers": None if self.file_readers is None else seen(self.file_readers),
            "tool_media": NEVER,
            "user_media": NEVER,
            "exclude_tools": (*self.exclude_tools, f"*{LIST}"),
        }
        return with_rules(self, seen, changes)

    def decide(self, item: ItemFacts, *, file_readers: Readers = "keep", is_bound: bool = False) -> Decision:
        """Decide on one item by its rule, see `judge`.

        Args:
            item: facts about the item.
            file_readers: "offload" applies no rule for file readers, for callers that do not offload later.
            is_bound: whether messages that were sent may not change.
        """
        limits = ItemLimits(self.exclude_tools, self.max_view_tokens, self.cost_plan, is_bound)
        return judge(self.rule_for(item, file_readers), item, limits)

    def rule_for(self, item: ItemFacts, file_readers: Readers = "keep") -> Rule:
        """Return the rule for an item; `file_readers` as in `decide`."""
        rule = self._rule_for(item, file_readers)
        is_due = item.is_report or self._is_pasted(item, rule)
        return rule.model_copy(update=_AT_ONCE) if is_due else rule

    def _is_pasted(self, item: ItemFacts, rule: Rule) -> bool:
        """Return whether a user message is data, where its rule names no size and the cost decides."""
        is_text = item.item_type == "user_message" and item.media_type is None
        is_by_cost = self.cost_plan != "none" and THRESHOLDS.isdisjoint(rule.model_fields_set)
        return is_text and is_by_cost and 0 < PASTED_CHARS * rule.after_replies <= item.chars

    def _rule_for(self, item: ItemFacts, file_readers: Readers) -> Rule:
        if item.media_type is not None:
            return self.tool_media if item.item_type == "tool_result" else self.user_media
        if is_answer(item.item_type, item.tool_name):
            return self.answers
        if item.tool_name is not None and item.item_type == "tool_result":
            for glob, rule in self.tools.items():
                if matches(item.tool_name, glob):
                    return rule
            if self.file_readers is not None and file_readers == "keep" and shows_file(item.tool_name):
                return self.file_readers
        types: Mapping[Any, Rule] = self.types
        return types.get(item.item_type, NEVER)


def _is_enabled(rule: object) -> bool:
    """Return whether a rule, as it was given, is enabled."""
    return (
        rule.get("enabled", True) is True
        if isinstance(rule, dict)
        else getattr(rule, "enabled", True) is True
    )


def with_rules(policy: P, change: Callable[[Rule], Rule], updates: Mapping[str, Any] | None = None) -> P:
    """Return a policy with its rules for types and tools changed, and with `updates` of its fields."""
    types = {name: change(rule) for name, rule in policy.types.items()}
    tools = {glob: change(rule) for glob, rule in policy.tools.items()}
    return policy.model_copy(update={"types": types, "tools": tools, **(updates or {})})
