"""The options of an `Offloader`: all of its arguments except the store and the session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, Literal, TypedDict, cast, get_args

from msgspec import field
from msgspec.structs import asdict

from offload.base.events import EventBus
from offload.base.threads.locks import cached
from offload.base.tokens import TokenCounter, estimate_tokens, in_whole_numbers
from offload.engine import policy as policies
from offload.engine.placeholder import Categorizes, DefaultRenderer, PlaceholderRenderer
from offload.engine.policy.facts import PolicyName
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.engine.settings.fields import check_fields
from offload.engine.settings.hooks import Hooks, ItemSummarizer, Redact, ShouldOffload, host_call
from offload.engine.settings.offer import MAX_ANSWER_CHARS, check_offer
from offload.errors import ConfigError, OffloadError, check_choice, check_texts, did_you_mean, failure
from offload.records.record.header import REF_FORMS, IdStyle
from offload.records.record.titles import checked_agent

OnError = Literal["keep", "raise", "truncate"]
# Returns seconds; only differences count.
Clock = Callable[[], float]
# The options that are made for each offloader; as an argument, their default is None.
_MADE = ("policy", "placeholder", "events")


class Options(Hooks, frozen=True, kw_only=True, eq=False, dict=True):
    """The options of one offloader, each an argument of `Offloader` with the same name and default.

    Raises:
        ConfigError: an unknown `id_style` or `on_error`; a policy, renderer, hook or prompt of a wrong type.
    """

    policy: policies.OffloadPolicy = field(default_factory=policies.policy_of)
    placeholder: PlaceholderRenderer = field(default_factory=DefaultRenderer)
    codec: str = "zstd"
    id_style: IdStyle = "letters"
    token_counter: TokenCounter | None = None
    tools: Sequence[str] = TOOL_NAMES
    max_answer_chars: int = MAX_ANSWER_CHARS
    on_error: OnError = "keep"
    events: EventBus = field(default_factory=EventBus)
    prompt: str | None = None
    clock: Clock = time.time
    reference_fields: Sequence[str] = ()
    model: str | None = None
    journal: bool = False
    agent_name: str | None = None

    @classmethod
    def of(cls, arguments: OptionArguments) -> Options:
        """Return the options that are given as keyword arguments; None is the default of what must be one.

        Raises `ConfigError` as the class does, and for an unknown name.
        """
        for name in arguments.keys() - {*cls.__struct_fields__}:
            meant = did_you_mean(name, [*cls.__struct_fields__, "session", "storage_options"])
            raise ConfigError(f"an offloader has no option {name!r}{meant}")
        policy, model = policies.policy_of(arguments.get("policy")), arguments.get("model")
        check_texts(model=model)
        given: dict[str, Any] = {**arguments, "policy": policy.for_model(model)}
        return cls(**{name: value for name, value in given.items() if not (name in _MADE and value is None)})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("id_style", self.id_style, REF_FORMS)
        check_choice("on_error", self.on_error, get_args(OnError))
        check_fields(self.reference_fields)
        check_offer(self.tools, self.max_answer_chars)
        if not isinstance(self.placeholder, PlaceholderRenderer):
            raise ConfigError(
                f"placeholder must have render() and find_ref(); {type(self.placeholder).__name__} does not"
            )
        check_texts(prompt=self.prompt)
        checked_agent(self.agent_name)
        if not callable(self.clock):
            raise ConfigError(
                f"clock must be a function that returns seconds, got {type(self.clock).__name__}"
            )

    def arguments(self) -> OptionArguments:
        """Return the options as keyword arguments of `Offloader`."""
        return cast("OptionArguments", asdict(self))

    @property
    def category(self) -> Callable[[str, str | None], str] | None:
        """Returns the category of an item type and tool name, if the placeholders name one."""
        return self.placeholder.category if isinstance(self.placeholder, Categorizes) else None

    @cached
    def count_tokens(self) -> TokenCounter:
        """The token counter, or the default estimate."""
        if self.token_counter is None:
            return estimate_tokens
        counter = in_whole_numbers(self.token_counter)

        def count(text: str) -> int:
            with host_call():
                return counter(text)

        return count

    def count_or_estimate(self, text: str) -> tuple[int, OffloadError | None]:
        """Return the tokens of a text; if the counter fails, an estimate and the error."""
        try:
            return self.count_tokens(text), None
        except Exception as error:  # noqa: BLE001 # a token counter may raise anything
            return estimate_tokens(text), failure("token_counter:", error, text)


def signature(*before: Parameter) -> Signature:
    """Return the signature of a function that takes the options by name after some other arguments."""
    names = Options.__struct_fields__
    defaults = dict(zip(names, Options.__struct_defaults__, strict=True)) | dict.fromkeys(_MADE)
    options = (Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name]) for name in names)
    return Signature([*before, *options])


class PresetOptions(TypedDict, total=False):
    """Keyword arguments of a preset that it passes on to its `Offloader`."""

    token_counter: TokenCounter | None
    should_offload: ShouldOffload | None
    redact: Redact | None
    summarizer: ItemSummarizer | None
    tools: Sequence[str]
    max_answer_chars: int
    on_error: OnError
    events: EventBus | None
    clock: Clock
    reference_fields: Sequence[str]
    model: str | None
    agent_name: str | None


class OptionArguments(PresetOptions, total=False):
    """`Options` as keyword arguments: `def __init__(self, **options: Unpack[OptionArguments])`."""

    policy: policies.OffloadPolicy | PolicyName | None
    placeholder: PlaceholderRenderer | None
    codec: str
    id_style: IdStyle
    prompt: str | None
    journal: bool


class StoreArguments(OptionArguments, total=False):
    """Keyword arguments of `Offloader` except `session`."""

    storage_options: Mapping[str, Any] | None


class SessionArguments(StoreArguments, total=False):
    """Keyword arguments of `Offloader`."""

    session: str | None
