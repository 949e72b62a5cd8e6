"""Errors of providers that refuse a request, raised or wrapped by any SDK; no SDK is imported.

They refuse it for its length, in the words of each, or for its thinking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from offload.engine.binding import ThinkingRefusal, refusal_in
from offload.errors import OffloadError
from offload.offloader import Offloader

# The classes that say it by their name: of LiteLLM, LangChain, Strands and Anthropic.
_CLASSES = {
    "ContextWindowExceededError",
    "ContextOverflowError",
    "ContextWindowOverflowException",
    "RequestTooLargeError",
}
_WORDS = (
    r"prompt (?:is )?too long|exceed context limit|request_too_large|request exceeds the maximum size|"
    r"context_length_exceeded|maximum context length|exceeds? (?:the|your) context window|"
    r"input tokens exceed the configured limit|'(?:messages|input)[^'\n]{0,60}': string too long|"
    r"input token count[^\n]{0,60}exceeds the maximum|maximum prompt length is \d|"
    r"input is too long|too many total text bytes|too many input tokens|too many tokens: |"
    r"reduce the length of the messages|exceeds the available context size|exceed_context_size|"
    r"(?:greater|longer) than the (?:model's )?context length|context window exceeds limit|"
    r"exceeded model token limit|token limit exceeded|range of input length should be|"
    r"context[ _](?:length|window)(?: is|_)? ?exceeded|exceeds (?:the )?model'?s? context window"
)
_SAYS_IT = re.compile(_WORDS, re.IGNORECASE)
# A limit of bytes, which says nothing of tokens.
_OF_BYTES = re.compile(r"request_too_large|request exceeds the maximum size", re.IGNORECASE)
# The tokens of the request and of the window, in the words of those that say them.
_N = r"[\d,]{1,15}"
_LENGTH = rf"(?:context length is|configured limit of) (?P<window>{_N}) tokens[^\n]{{0,60}}?"
_FIGURES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<counted>{_N}) tokens > (?P<window>{_N}) maximum",
        rf"context limit: (?P<counted>{_N}) \+ (?P<answer>{_N}) > (?P<window>{_N})",
        rf"token count \((?P<counted>{_N})\) exceeds[^\n]{{0,60}}\((?P<window>{_N})\)",
        rf"{_LENGTH}\((?P<counted>{_N}) (?:in|of)[^\n]{{0,40}}?(?P<answer>{_N}) (?:in|for) the completion",
        rf"{_LENGTH}(?:resulted in|requested(?: about)?) (?P<counted>{_N}) tokens",
        rf"prompt length is (?P<window>{_N}) but the request contains (?P<counted>{_N})",
        rf"\((?P<counted>{_N}) tokens\) exceeds the available context size \((?P<window>{_N})",
        rf"contains (?P<counted>{_N}) tokens[^\n]{{0,80}}model with (?P<window>{_N}) maximum",
    )
]
# Not allowed, not found, too many requests: their texts may speak of tokens too.
_OTHER_STATUS = (401, 403, 404, 429)
# The statuses of a request that can never succeed as it is; an error may have none.
_REFUSED = (None, 400, 422)
_MOST_CHARS = 20_000
_MOST_ERRORS = 20


class LengthRefusal(NamedTuple):
    """The figures in a refusal of a request that is too long; None for each that is missing.

    `counted` are the tokens of the request, `window` the most that it may have with the answer asked for;
    `is_bytes` says that it had too many bytes, as images can have at any number of tokens.
    """

    counted: int | None = None
    window: int | None = None
    is_bytes: bool = False


def is_too_long(error: BaseException) -> bool:
    """Return whether a provider refused a request for its length, such as "prompt is too long".

    It knows the errors of the SDKs of Anthropic, OpenAI, Google, AWS Bedrock and of compatible servers, also
    inside those of LiteLLM, LangChain and others that wrap them. A rate limit is not such an error.
    """
    return length_refusal(error) is not None


def length_refusal(error: BaseException) -> LengthRefusal | None:
    """Return the figures of an error about a request that is too long; None if it is another error."""
    for one in chain_of(error):
        if status_of(one) in _OTHER_STATUS:
            continue
        text, classes = text_of(one), {known.__name__ for known in type(one).__mro__}
        if _SAYS_IT.search(text) or not classes.isdisjoint(_CLASSES):
            is_bytes = _OF_BYTES.search(text) is not None or "RequestTooLargeError" in classes
            return LengthRefusal(is_bytes=True) if is_bytes else _figures(text)
    return None


def _figures(text: str) -> LengthRefusal:
    """Return the figures in a text; none that contradict each other."""
    for pattern in _FIGURES:
        if match := pattern.search(text):
            named = {name: int(value.replace(",", "") or 0) for name, value in match.groupdict().items()}
            counted, window = named["counted"], named["window"] - named.get("answer", 0)
            if counted > window > 0:
                return LengthRefusal(counted, window)
    return LengthRefusal()


def thinking_refusal(error: BaseException) -> ThinkingRefusal | None:
    """Return what a provider's error says about thinking; None if it is another error.

    "bound" is thinking that "is bound to a different conversation": remove it by `Offloader.remove_thinking`.
    "missing" is a tool call without its thinking: get that by `Offloader.return_thinking`. Then send the
    request again; `ContextManager.call` does this itself. It knows the errors of the SDKs of Anthropic, AWS
    Bedrock, OpenAI and of compatible servers, also inside those of LiteLLM, LangChain and others.
    """
    for one in chain_of(error):
        found = refusal_in(text_of(one)) if status_of(one) in _REFUSED else None
        if found is not None:
            return found
    return None


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, those that it wraps, and those that caused it."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_ERRORS:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [*inner, one.__cause__, None if one.__suppress_context__ else one.__context__]


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in an error of an SDK; None if there is none."""
    response = getattr(error, "response", None)
    meta = response.get("ResponseMetadata") if isinstance(response, dict) else None
    found = (
        getattr(error, "status_code", None),
        getattr(error, "code", None),
        meta.get("HTTPStatusCode") if isinstance(meta, dict) else None,
    )
    return next((status for status in found if isinstance(status, int)), None)


def text_of(error: BaseException) -> str:
    """Return what an error says, with its code and body; empty if it cannot say it."""
    parts: list[Any] = [getattr(error, "code", None), getattr(error, "body", None)]
    try:
        return "\n".join(str(part)[:_MOST_CHARS] for part in [error, *filter(None, parts)])
    except Exception:  # noqa: BLE001 # an error may be an object that raises anything
        return ""


class Repairs:
    """Which refusals of one call are answered with another request, and how often."""

    def __init__(self) -> None:
        self._left = {"too long": 1, "bound": 2, "missing": 1}

    def may_repair(self, error: BaseException) -> bool:
        """Return whether an error is a refusal that another request may answer; it counts as one then."""
        refusal = thinking_refusal(error)
        kind = "too long" if refusal is None else refusal.kind
        if (refusal is None and not is_too_long(error)) or not self._left[kind]:
            return False
        self._left[kind] -= 1
        return True


def repairs(offloader: Offloader, messages: Sequence[Any], error: BaseException) -> bool:
    """Remove thinking that a provider refused, or return what it lacks; return whether there is any.

    Then offload the messages again, and send the request once more: a second refusal is another fault. If
    the store fails, `error` gets a note that says so.

    Args:
        offloader: that of the conversation.
        messages: the messages that were passed to `offload` for the request.
        error: that of the request, of any SDK.
    """
    refusal = thinking_refusal(error)
    if refusal is None:
        return False
    try:
        if refusal.kind == "missing":
            return offloader.return_thinking(messages) is not None
        return offloader.remove_thinking(messages) > 0
    except OffloadError as failed:
        error.add_note(f"offload could not store which thinking is sent: {failed}")
        return False
