"""Copies of replies, read: their next action, their price, and a request without its thinking."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

from offload.engine.binding import refusal_in
from offload.gateway._apis import CALLS_OF
from offload.gateway._codings import decoder
from offload.gateway._edits import Edited
from offload.gateway._exchange import ReplyCopy
from offload.gateway._incoming import Api
from offload.gateway._outgoing import Outgoing, without_thinking_from
from offload.gateway._parsed import read_request
from offload.gateway._provider import EVENTS
from offload.messages.stored import map_texts
from offload.messages.usage import output_of, usage_of
from offload.replay import PriceCard
from offload.replay._actions import action_of


class LostError(Exception):
    """A drawn request has no pair, for the reason in the text."""


class UnpaidError(LostError):
    """The provider refused a request, so that it costs nothing."""


class BoundError(Exception):
    """The provider refuses the thinking in an original: it was made behind what the gateway sent."""


class ReadReply(NamedTuple):
    """A reply of the model.

    Attributes:
        action: its next action; None if it only reads items back.
        shown: the action with what may be stored of it.
        usage: the provider's counts, in its form.
    """

    action: str | None
    shown: str
    usage: Any


def read(api: Api, copy: ReplyCopy, redact: Callable[[str], str]) -> ReadReply:
    """Return the reply in a copy of an answer. Raises `LostError`, `BoundError` and errors of `redact`."""
    if copy.status != HTTPStatus.OK:
        if copy.status == HTTPStatus.BAD_REQUEST and refusal_in(_text(copy)) is not None:
            raise BoundError
        raise UnpaidError(f"status {copy.status}" if copy.status else "no answer")
    if not copy.is_whole:
        raise LostError("a reply is too long" if copy.is_long else "a reply broke off")
    is_stream = api.streams or copy.header(b"content-type").startswith(EVENTS)
    reply = CALLS_OF[api.name].reply((), is_stream=is_stream)
    with suppress(ValueError):
        reply.feed(_plain(copy))
        reply.end()
    if not reply.is_whole:
        raise LostError("a reply has no known form")
    messages = [json.loads(message) for message in reply.messages()]
    shown = action_of(map_texts(messages, redact)) or "(reads back)"
    return ReadReply(action_of(messages), shown, reply.usage)


def dollars_of(card: PriceCard, used: Any) -> float | None:
    """Return the price of a request and its reply by the provider's counts; None without counts."""
    usage, written = usage_of(used), output_of(used)
    if usage is None or written is None or card.output is None:
        return None
    return card.dollars(card.units_of(usage)) + written * card.output / 1_000_000


def most_dollars(card: PriceCard, used: Any, more: int) -> float:
    """Return the price of the same with `more` input tokens, of which no cache has any.

    Raises `LostError` if it is not known.
    """
    usage, dollars = usage_of(used), dollars_of(card, used)
    if usage is None or dollars is None:
        raise LostError("the reply has no usage")
    tokens = usage.tokens + more
    if card.up_to is not None and tokens > card.up_to:
        raise LostError("the price of so long a request is not known")
    units = tokens * max(1.0, card.cache_for(usage.kept_for).write)
    return dollars - card.dollars(card.units_of(usage)) + card.dollars(units)


def without_thinking(api: Api, body: bytes) -> bytes:
    """Return a request without its signed thinking. Raises `UnpaidError` if it has none to remove."""
    parsed = read_request(body, api)
    if parsed is not None:
        made = without_thinking_from(Outgoing(body, None, Edited(parsed), parsed.views), 0)
        if made is not None:
            return made.body
    raise UnpaidError("the provider refuses the thinking in the original")


def _plain(copy: ReplyCopy) -> bytes:
    decode = decoder([copy.header(b"content-encoding")])
    return b"" if decode is None else b"".join(decode.feed(bytes(copy.body)))


def _text(copy: ReplyCopy) -> str:
    with suppress(ValueError):
        return _plain(copy).decode(errors="replace")
    return ""
