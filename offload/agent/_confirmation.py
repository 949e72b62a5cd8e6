"""The user's answer to a compaction, asked once per call of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.agent._config import AgentConfig
from offload.agent.compaction import CompactionResult, CompactionStrategy, Proposal
from offload.agent.compaction.rounds import Confirm, RefusalEffect, ask
from offload.engine.results import is_whole
from offload.errors import ConfigError
from offload.messages.context import ContextIR


class Confirmation:
    """Asks the user, and remembers the answer: a refusal that removes nothing holds until the user speaks.

    No compaction may be tried while it `is_closed`: the user refused all, or the question failed.
    """

    def __init__(self, confirm: Confirm, on_refusal: RefusalEffect) -> None:
        self._confirm = confirm
        self._on_refusal = on_refusal
        self._answer: bool | RefusalEffect | None = None
        self.is_closed = False

    def __call__(self, proposal: Proposal) -> bool | RefusalEffect:
        """Return True or the effect of the refusal. Raises `OffloadError` if there is neither."""
        if self._answer is None:
            self.is_closed = True
            self._answer = ask(self._confirm, proposal, self._on_refusal)
        self.is_closed = self._answer == "error"
        return self._answer

    def begin_call(self) -> None:
        """Forget the answer for the next call, except a refusal that removes nothing."""
        if self._answer != "error":
            self.renew()

    def renew(self) -> None:
        self._answer, self.is_closed = None, False


class ConfirmedStrategy:
    """A strategy that the user must agree to; a refusal runs another one, which applies it."""

    def __init__(
        self,
        strategy: CompactionStrategy,
        refused: CompactionStrategy,
        confirmation: Confirmation,
        window: int,
    ) -> None:
        self._strategy = strategy
        self._refused = refused
        self._confirmation = confirmation
        self._window = window

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> CompactionResult:
        tokens = context.total_tokens if current_total_tokens is None else current_total_tokens
        is_agreed = self._confirmation(Proposal(tokens, self._window, 0)) is True
        strategy = self._strategy if is_agreed else self._refused
        return strategy.compact(context, current_total_tokens=tokens)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        restored = self._strategy.restore(messages)
        return restored if is_whole(restored) else self._refused.restore(restored)


def confirmation_of(confirm: Confirm | None, config: AgentConfig) -> Confirmation | None:
    """Return what asks the user, if anything does. Raises `ConfigError` if a setting has no effect."""
    asks = config.model_fields_set & {"on_refusal"} or (
        config.require_confirmation and "require_confirmation" in config.model_fields_set
    )
    if confirm is None and asks:
        raise ConfigError("require_confirmation and on_refusal need confirm=, a function that asks the user")
    return Confirmation(confirm, config.on_refusal) if confirm and config.require_confirmation else None
