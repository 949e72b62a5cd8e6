"""What is offloaded and what is kept: a pure function of facts about an item, with its reason.

    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=3000)}, exclude_tools=("read_*",))
    policy.decide(facts).reason

A rule is found by tool first (first matching glob), then by item type. Globs are compared without regard
to case, since one tool is `Read` to one agent and `read` to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from offload.errors import PolicyError
from offload.record import ItemType

READ_BACK_TOOLS = ("context_list", "context_read", "context_tail", "context_grep")
DEFAULT_MIN_TOKENS = 2000

Action = Literal["offload", "keep", "wait"]
_DURATION = re.compile(r"(\d+)\s*([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 10**9


def _seconds(value: object) -> object:
    """Return whole seconds of a `timedelta` or a text like "90s"; anything else is left to pydantic."""
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(f'a duration is seconds or a text like "90s", "15m", "2h", "7d", not {value!r}')
        return int(match[1]) * _UNITS[match[2]]
    return value


Seconds = Annotated[int, BeforeValidator(_seconds), Field(strict=True, ge=0, le=_MAX_SECONDS)]
_INNER = re.compile(r"(^|; )(?:Rule|Retention)(?=[.:])")
_Size = Annotated[int, Field(strict=True, gt=0)]
_Count = Annotated[int, Field(strict=True, ge=0)]


class ItemFacts(NamedTuple):
    """What a policy may know of an item.

    Attributes:
        message: index of the message in the list.
        block: index of the block in the message's content, None where the content is one value.
        item_type: what kind of part of a message it is.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        chars: its characters.
        bytes: its bytes as UTF-8; None where no rule of the policy asks for them.
        tokens: its tokens by the session's counter.
        is_error: whether the tool reported a failure.
        is_stored: whether it is a placeholder already.
        answers: how many assistant messages follow it: how often the model saw it and answered.
    """

    message: int
    block: int | None
    item_type: str
    tool_name: str | None
    tool_use_id: str | None
    chars: int
    bytes: int | None
    tokens: int
    is_error: bool
    is_stored: bool
    answers: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one item, and why.

    Attributes:
        item: the facts that were decided on.
        action: "offload"; "keep"; "wait", which becomes "offload" once the model has seen the item.
        reason: the reason in words, for a person.
        preview_chars: how many characters of preview the placeholder may show.
        ref: the record that now stands for the item; None while it is in the message.
        tokens_after: tokens of what stands in the message.
        ttl: for how many seconds its record is kept at least; None for good.
    """

    item: ItemFacts
    action: Action
    reason: str
    preview_chars: int
    ref: str | None
    tokens_after: int
    ttl: int | None = None


class _Model(BaseModel):
    """A frozen model whose faults are errors of our tree, each value named by its path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # The generated signature is what users should see.

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise PolicyError(_describe(type(self), error)) from None

        @classmethod
        def model_validate(cls, *args: Any, **options: Any) -> Self:
            """Return the model that data describes. Raises `PolicyError`."""
            try:
                return super().model_validate(*args, **options)
            except ValidationError as error:
                raise PolicyError(_describe(cls, error)) from None


class Rule(_Model):
    """When an item is large enough to leave, and when it may.

    Give one of the three thresholds; without any it is `min_tokens=2000`.

    Attributes:
        enabled: False keeps the items that the rule is for, whatever their size.
        min_tokens: offload from this many tokens on.
        min_chars: offload from this many characters on.
        min_bytes: offload from this many bytes of UTF-8 on.
        after_turns: how often the model must have answered with the item in full view; 0 offloads it
            before the model sees it, 1 after it was seen once.
        preview_chars: characters of preview in the placeholder; 0 for none.
        ttl: how long a record is kept at least: seconds, a `timedelta`, or a text like "90s", "15m", "2h",
            "7d". After that the next collection takes it, whoever still cites it; None keeps it for good.
    """

    enabled: Annotated[bool, Field(strict=True)] = True
    min_tokens: _Size | None = None
    min_chars: _Size | None = None
    min_bytes: _Size | None = None
    after_turns: _Count = 0
    preview_chars: Annotated[int, Field(strict=True, ge=0, le=20_000)] = 1000
    ttl: Annotated[Seconds, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        given = [n for n in ("min_tokens", "min_chars", "min_bytes") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"give one threshold, not {' and '.join(given)}")
        return self

    def shortfall(self, item: ItemFacts) -> str | None:
        """Return how far `item` is below the threshold, in words, or None if it reaches it."""
        if self.min_chars is not None:
            unit, least, size = "characters", self.min_chars, item.chars
        elif self.min_bytes is not None:
            unit, least, size = "bytes", self.min_bytes, item.bytes or 0
        else:
            unit, least, size = "tokens", self.min_tokens or DEFAULT_MIN_TOKENS, item.tokens
        return None if size >= least else f"{size} {unit}, under {least}"


_NEVER = Rule(enabled=False)
# A seed's sizes. A user's text is seen once before it goes: it may be the task itself.
_TYPES: dict[ItemType, Rule] = {
    "tool_result": Rule(),
    "user_message": Rule(after_turns=1),
    "skill_prompt": Rule(after_turns=1),
    "assistant_message": _NEVER,
    "compaction_summary": _NEVER,
    "system_prompt": _NEVER,
}
# What a model asked to see in full it should see in full once: hiding a file that was just opened
# costs a read back every time, and leaving it for good costs most of the saving.
_SEEN_ONCE = Rule(after_turns=1)
_READERS = dict.fromkeys(
    ("*read*", "*view*", "*open*", "cat", "*notebook*", "*browse*", "*fetch*", "*editor*"), _SEEN_ONCE
)


class Retention(_Model):
    """How much is kept, and for how long a marked record can still be read by who is reading it.

    A quota takes the oldest records of a session, and of a store those of the least recently used session
    first; never those of a session that is pinned or live, and none that is shared.

    Attributes:
        session_bytes: stored bytes of one session.
        session_records: records of one session.
        store_bytes: stored bytes of all sessions; looked at when the whole store is collected.
        store_records: records of all sessions; the same.
        grace: how long a marked record stays before it is emptied. It must be longer than any read takes.
        live_for: how long after its last use a session counts as live.
    """

    session_bytes: _Size | None = None
    session_records: _Size | None = None
    store_bytes: _Size | None = None
    store_records: _Size | None = None
    grace: Seconds = 3600
    live_for: Seconds = 86_400


class OffloadPolicy(_Model):
    """Which items are offloaded.

    Errors, placeholders and the answers of the read-back tools are never offloaded, whatever the rules.

    Attributes:
        types: rules by item type; types that are not named keep their default.
        tools: rules by tool name, as globs, compared without regard to case; the first that matches
            wins, and a rule by tool wins over one by type. By default file readers and browsers are
            offloaded once the model has seen the result in full; a policy that names its own `types`
            or `tools` is taken at its word and has no such default.
        exclude_tools: globs of tools whose results always stay.
        min_saving: tokens that an offload must free, the placeholder counted.
        retention: what a collection takes beside records whose time to live is over.
    """

    types: dict[ItemType, Rule] = Field(default_factory=dict)
    tools: dict[str, Rule] = Field(default_factory=dict)
    exclude_tools: tuple[str, ...] = ()
    min_saving: _Count = 100
    retention: Retention = Retention()

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        tools = {} if "types" in data else _READERS
        types = data.get("types", {})
        if not isinstance(types, dict):
            return data
        return {"tools": tools, **data, "types": {**_TYPES, **types}}

    @cached_property
    def counts_bytes(self) -> bool:
        """Whether a rule has a threshold in bytes, which take a pass over a text to count."""
        rules = (*self.types.values(), *self.tools.values())
        return any(rule.min_bytes is not None for rule in rules)

    def decide(self, item: ItemFacts) -> Decision:
        """Return what becomes of `item`. Pure: the same facts give the same decision always."""
        rule = self._rule(item)
        action, reason = self._judge(rule, item)
        return Decision(item, action, reason, rule.preview_chars, None, item.tokens, rule.ttl)

    def _judge(self, rule: Rule, item: ItemFacts) -> tuple[Action, str]:
        for kept, reason in (
            (item.is_stored, "a placeholder already"),
            (item.is_error, "errors stay in view"),
            (item.tool_name in READ_BACK_TOOLS, "an answer that was read back"),
            (self._is_excluded(item.tool_name), f"{item.tool_name} is in exclude_tools"),
            (not rule.enabled, f"{item.item_type} is not offloaded by this policy"),
        ):
            if kept:
                return "keep", reason
        shortfall = rule.shortfall(item)
        if shortfall is not None:
            return "keep", shortfall
        if item.answers < rule.after_turns:
            return "wait", f"goes after the model has answered {rule.after_turns} x with it in view"
        return "offload", f"{item.tokens} tokens"

    def _rule(self, item: ItemFacts) -> Rule:
        if item.tool_name is not None and item.item_type == "tool_result":
            for glob, rule in self.tools.items():
                if _matches(item.tool_name, glob):
                    return rule
        return self.types.get(cast("ItemType", item.item_type), _NEVER)

    def _is_excluded(self, tool_name: str | None) -> bool:
        return tool_name is not None and any(_matches(tool_name, g) for g in self.exclude_tools)


def explain(decisions: Iterable[Decision]) -> str:
    """Return the decisions as a table of plain text, one item a line."""
    head = f"{'item':>8}  {'type':18} {'tool':20} {'tokens':>8} {'after':>8}  decision"
    lines = [
        f"{_place(d.item):>8}  {d.item.item_type:18} {(d.item.tool_name or '-')[:20]:20} "
        f"{d.item.tokens:8} {d.tokens_after:8}  {d.action}: {d.reason}"
        for d in decisions
    ]
    return "\n".join([head, *lines])


def _place(item: ItemFacts) -> str:
    return str(item.message) if item.block is None else f"{item.message}.{item.block}"


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name.lower(), glob.lower())


def _describe(model: type[BaseModel], error: ValidationError) -> str:
    """Return what was wrong, each value by its path, and what would be right."""
    faults = []
    for fault in error.errors(include_url=False):
        path = ".".join([model.__name__, *(str(part) for part in fault["loc"] if part != "[key]")])
        if fault["type"] == "value_error":
            said = fault["msg"].removeprefix("Value error, ")
            # What a rule said of itself is said of its place in the policy.
            inner = _INNER.sub(rf"\1{path}", said)
            faults.append(f"{path}: {said}" if inner == said else inner)
        elif fault["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            faults.append(f"{path}: no such field, got {fault['input']!r:.60}; there are {known}")
        else:
            faults.append(f"{path}: {fault['msg']}, got {fault['input']!r:.60}")
    return "; ".join(faults)
