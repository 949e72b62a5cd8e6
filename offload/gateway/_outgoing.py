"""Requests on their way to the provider: what the engine returned, as bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any, cast

from offload.engine.results import OffloadResult
from offload.errors import StoreError
from offload.gateway._edits import Edited, edited, held_back
from offload.gateway._parsed import Parsed
from offload.gateway._status import Unchanged
from offload.gateway._threads import Thread, keys_in
from offload.messages.base import BlockIndex
from offload.messages.thinking import bare_of, with_thinking_of
from offload.records.record import RecordInfo


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request on its way to the provider.

    Attributes:
        thread: its conversation; None if the request passed without a look at its messages.
        edited: the request with its changes, and `messages` its messages as they are sent.
        records: those of what is replaced, and `tokens_removed` what that frees.
        why: why nothing new is replaced; None if something is.
        refused: keys of the thinking that is removed since the provider refused it.
        has_all: whether it has all thinking of the client, since the provider refused it without.
        result: the messages with their tokens, for the journal; None if their tokens are not known.
    """

    body: bytes
    thread: Thread | None = None
    edited: Edited | None = None
    messages: Sequence[Any] = ()
    records: Sequence[RecordInfo] = ()
    tokens_removed: int = 0
    why: Unchanged | None = None
    refused: frozenset[str] = frozenset()
    has_all: bool = False
    result: OffloadResult | None = None

    @property
    def parsed(self) -> Parsed | None:
        return None if self.edited is None else self.edited.parsed

    @property
    def is_threaded(self) -> bool:
        """Whether the provider keeps the conversation from this request on."""
        return self.parsed is not None and self.parsed.is_threaded


def outgoing(thread: Thread, parsed: Parsed, result: OffloadResult, why: Unchanged | None = None) -> Outgoing:
    """Return a request with the messages of a result, but for what the model has not seen."""
    messages = _without(held_back(parsed, result.messages, _unseen(parsed, result)), thread.refused)
    made = edited(parsed, messages)
    # The engine continues with its own list of errors.
    sent = None if thread.journal is None else replace(result, messages=[*messages], errors=[])
    freed, records = result.tokens_before - result.tokens_after, result.records
    if not made.is_changed:
        has_failed = any(isinstance(error, StoreError) for error in result.errors)
        why = why or (Unchanged.STORE_FAILED if has_failed else Unchanged.NOTHING_DUE)
        freed, records = 0, []
    return Outgoing(made.body(), thread, made, messages, records, freed, why=why, result=sent)


def as_before(thread: Thread, parsed: Parsed, why: Unchanged) -> Outgoing:
    """Return a request with nothing replaced but what was before."""
    sent = thread.sent
    repeated = parsed.views if sent is None else sent.repeated(parsed.views)
    messages = _without(repeated, thread.refused | thread.unfounded(parsed))
    made = edited(parsed, messages)
    return Outgoing(made.body(), thread, made, messages, why=why)


def without_thinking_from(request: Outgoing, first: int) -> Outgoing | None:
    """Return a request without the signed thinking from a message on; None if it has none there."""
    refused = keys_in(request.messages[first:])
    if request.parsed is None or not refused:
        return None
    return replace(_with(request, _without(request.messages, refused)), refused=refused)


def with_all_thinking(request: Outgoing) -> Outgoing | None:
    """Return a request with all signed thinking that the client sent; None if it has that."""
    views = () if request.parsed is None else request.parsed.views
    messages = [with_thinking_of(*pair) for pair in zip(request.messages, views, strict=False)]
    if request.parsed is None or not any(map(is_not, messages, request.messages)):
        return None
    return replace(_with(request, messages), has_all=True)


def _with(request: Outgoing, messages: Sequence[Any]) -> Outgoing:
    made = edited(cast("Parsed", request.parsed), messages)
    result = request.result and replace(request.result, messages=list(messages))
    return replace(request, body=made.body(), edited=made, messages=messages, result=result)


def _without(messages: Sequence[Any], refused: Collection[str]) -> Sequence[Any]:
    """Return messages without some of their thinking."""
    return [bare_of(message, refused) for message in messages] if refused else messages


def _unseen(parsed: Parsed, result: OffloadResult) -> set[tuple[int, BlockIndex]]:
    """Return the items that were prepared for the next request, by message and block, and are in this one.

    The client repeats a request, or the user writes before the model replies.
    """
    last = parsed.last_reply
    return {
        (decision.item.message, decision.item.block)
        for decision in result.decisions
        if decision.item.message > last and decision.ref is not None and decision.item.answers > 0
    }
