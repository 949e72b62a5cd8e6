"""Which message answers which tool call, and where a conversation may be cut without parting the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from offload.errors import MessageError
from offload.messages import Scan, adapter_for, role_of
from offload.messages._access import get

_RESULT_ROLES = ("tool", "function")
_ENVELOPES = ("data", "kwargs")
# Calls of tools that the API itself runs: no result of their own follows.
_SERVED = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
)


def role_or_none(message: Any) -> str | None:
    """Return the role of `message`, as `role_of` does; None if it has none."""
    try:
        return role_of(message)
    except MessageError:
        return None


def scan_of(message: Any) -> Scan:
    """Return what `message` holds; one that is malformed holds nothing that is understood."""
    try:
        return adapter_for(message).scan(message, "message", {})
    except MessageError:
        return Scan()


def is_answer(message: Any) -> bool:
    """Tell whether `message` holds the result of a tool call that the host made, in whatever format.

    What the API's own tools found stands among the words of the model.
    """
    role = role_or_none(message)
    return role in _RESULT_ROLES or (role != "assistant" and any(True for _ in _result_ids(message)))


def answered_calls(message: Any) -> list[str]:
    """Return the ids of earlier tool calls whose results `message` holds; formats without ids name none."""
    return [call for call in _result_ids(message) if isinstance(call, str)]


def partners(messages: Sequence[Any]) -> dict[int, int]:
    """Return, by the index of a message with tool calls, the index of the last message that answers it.

    An id that is used again belongs to the latest call before the answer. Calls that nobody answered
    are not named.
    """
    made: dict[str, int] = {}
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        for call in answered_calls(message):
            if call in made:
                last[made[call]] = index
        made |= dict.fromkeys(scan_of(message).calls, index)
    return last


def waiting_from(messages: Sequence[Any]) -> int:
    """Return the index of the first message with a tool call that waits for its result, else their number.

    A call waits if the model has said nothing since, nor the user: the result is still to come.
    """
    end = len(messages)
    while end and is_answer(messages[end - 1]):
        end -= 1
    start = end
    while start and role_or_none(messages[start - 1]) == "assistant":
        start -= 1
    answered = {call for message in messages[end:] for call in answered_calls(message)}
    is_answered = end < len(messages)
    turn = range(start, end)
    return next((i for i in turn if _waits(messages[i], answered, is_answered=is_answered)), len(messages))


def split_rounds(messages: Sequence[Any]) -> list[range]:
    """Return the rounds of a conversation, each as the range of its messages' indices, in order.

    A round begins with what the user said, be it several messages in a row, and lasts until the user
    speaks again. A tool call and its result are always in one round, whatever was said between them;
    what stands before the first words of the user belongs to the first round.
    """
    last = partners(messages)
    starts: list[int] = []
    reach, was_spoken = -1, False
    for index, message in enumerate(messages):
        is_spoken = role_or_none(message) == "user" and not is_answer(message)
        if is_spoken and not was_spoken and reach < index:
            starts.append(index)
        reach, was_spoken = max(reach, last.get(index, -1)), is_spoken
    bounds = [0, *starts[1:], len(messages)] if messages else [0]
    return [range(start, end) for start, end in pairwise(bounds)]


def _waits(message: Any, answered: set[str], *, is_answered: bool) -> bool:
    if get(message, "type") in _SERVED:
        return False
    scan = scan_of(message)
    if scan.calls:
        return not answered.issuperset(scan.calls)
    # Formats without ids of calls answer all of a turn in one message.
    return not is_answered and any(item.item_type == "tool_call" for item in scan.items)


def _result_ids(message: Any) -> Iterator[Any]:
    """Yield the id of the call, as it stands there, for each result in `message`."""
    fields = _opened(message)
    if role_or_none(message) in _RESULT_ROLES:
        yield get(fields, "tool_call_id") or get(fields, "call_id")
    blocks = _listed(get(fields, "content"))
    own = {call for block in blocks if isinstance(call := get(block, "id"), str)}
    for block in blocks:
        if str(get(block, "type")).endswith("tool_result"):
            # A tool that the API runs is called and answered in one message, unless the turn was paused.
            if get(block, "tool_use_id") not in own:
                yield get(block, "tool_use_id")
        elif get(block, "toolResult") is not None:
            yield get(get(block, "toolResult"), "toolUseId")
    for part in _listed(get(fields, "parts")):
        response = get(part, "functionResponse") or get(part, "function_response")
        if response is not None:
            yield get(response, "id")


def _opened(message: Any) -> Any:
    """Return the fields of `message`, which LangChain's dicts hold in an envelope."""
    if isinstance(message, Mapping):
        return next((message[e] for e in _ENVELOPES if isinstance(message.get(e), Mapping)), message)
    return message


def _listed(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list | tuple) else ()
