"""Pairs of tool calls and results, and the places where a conversation may be cut without parting them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from offload.messages.calls import Calls
from offload.messages.formats import adapter_for, answered_calls, is_result, role_or_none, scan_of


def partners(messages: Sequence[Any]) -> dict[int, int]:
    """Return, by the index of a message with tool calls, the index of the last message with their results.

    An id that is used again belongs to the latest turn with such calls, whose results are in their order.
    """
    calls = Calls()
    places: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        results: dict[str, list[None]] = {}
        for call_id in answered_calls(message):
            asked, before = calls.get(call_id), results.setdefault(call_id, [])
            made = None if asked is None else asked.answered(call_id, None, before)
            if made is not None:
                last[places[id(made)]] = index
            before.append(None)
        scan = scan_of(message)
        places |= {id(call): index for _, call in scan.calls}
        calls.add(scan.calls, results, is_reply=role_or_none(message) == "assistant")
    return last


def waiting_from(messages: Sequence[Any]) -> int:
    """Return the index of the first message with an open tool call, or the number of messages.

    A call is open if its result is still to come: neither the model nor the user wrote anything since.
    """
    end = len(messages)
    while end and is_result(messages[end - 1]):
        end -= 1
    start = end
    while start and role_or_none(messages[start - 1]) == "assistant":
        start -= 1
    answered = Counter(call for message in messages[end:] for call in answered_calls(message))
    for index in range(start, end):
        for call in scan_of(messages[index]).open_calls:
            # Formats without ids answer all calls of a turn in one message.
            if end == len(messages) if call is None else not answered[call]:
                return index
            answered[call or ""] -= 1
    return len(messages)


def split_rounds(messages: Sequence[Any]) -> list[range]:
    """Return the rounds of a conversation, in order, as ranges of message indices.

    A round starts with one or more user messages in a row and lasts until the next ones. A tool call and
    its result are always in one round, with all messages between them; messages before the first user
    message belong to the first round.
    """
    last = partners(messages)
    starts: list[int] = []
    reach, was_user = -1, False
    for index, message in enumerate(messages):
        is_user = role_or_none(message) == "user" and not is_result(message)
        if is_user and not was_user and reach < index:
            starts.append(index)
        reach, was_user = max(reach, last.get(index, -1)), is_user
    return ranges_between(starts[1:], len(messages))


def split_groups(messages: Sequence[Any]) -> list[range]:
    """Return the shortest runs of messages that are kept or removed together, in order, as ranges of indices.

    A run starts with a tool call and ends with its last result, with all messages between them.
    """
    last = partners(messages)
    starts: list[int] = []
    reach, is_needed = -1, False
    for index, message in enumerate(messages):
        adapter = adapter_for(message)
        # In formats without ids, results directly follow their calls.
        if index > reach and not is_needed and not adapter.results(message):
            starts.append(index)
        reach, is_needed = max(reach, last.get(index, -1)), adapter.needs_next(message)
    return ranges_between(starts, len(messages))


def ranges_between(starts: Sequence[int], end: int) -> list[range]:
    """Return the ranges from 0 to `end` that begin at `starts`, besides the first."""
    bounds = [0, *filter(None, starts), end] if end else []
    return [range(start, stop) for start, stop in pairwise(bounds)]
