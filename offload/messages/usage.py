"""The usage in a provider's reply: the input tokens of its request, and those that its cache served."""

from __future__ import annotations

from typing import Any, NamedTuple

from offload.messages.access import are_equal, block_list, get

# Where a reply holds its usage; a usage itself has none of these fields.
_HOLDERS = ("usage", "usage_metadata", "usageMetadata")
# Fields that count what the model wrote; Gemini counts its thoughts apart.
_WRITTEN = ("completion_tokens", "output_tokens", "candidatesTokenCount", "total_output_tokens")
_THOUGHT = "thoughtsTokenCount"
# Fields that count tokens by how long the cache keeps them.
_KEPT = {
    "ephemeral_5m_input_tokens": 300,
    "ephemeral_1h_input_tokens": 3600,
    "ttl_30m_tokens": 1800,
    "ttl_12h_tokens": 43_200,
}
_KEPT_BY_NAME = {"5m": 300, "1h": 3600}
# A larger count is none.
_MOST_TOKENS = 10**12


class Usage(NamedTuple):
    """Input tokens of one request, as its provider counted them.

    Attributes:
        tokens: all of them, cached ones included.
        read: tokens that were read from the provider's cache; None if the reply does not say.
        written: tokens that were written to the cache; 0 if the reply does not say.
        kept_for: how many seconds the cache keeps most of the written ones; None if the reply does not say.
        missed: tokens that were expected in the cache, and were not, so that the provider read them again.
        reason: the provider's reason why its cache could not be used, such as "messages_changed".
    """

    tokens: int
    read: int | None = None
    written: int = 0
    kept_for: int | None = None
    missed: int = 0
    reason: str | None = None


class _UsageFields(NamedTuple):
    """Fields of a usage: `total` counts input tokens, with those of the cache if `is_whole`.

    `read` and `written` are in the table `details`, or in the usage itself. A missing `read` means `absent`.
    """

    total: str
    details: str
    read: str
    written: str
    is_whole: bool = True
    absent: int | None = None


# The first that applies: more than one has `input_tokens`.
_USAGE_FIELDS = (
    # OpenAI chat, and DeepSeek, whose older replies have no details.
    _UsageFields("prompt_tokens", "prompt_tokens_details", "cached_tokens", "cache_write_tokens"),
    _UsageFields("prompt_tokens", "", "prompt_cache_hit_tokens", ""),
    # OpenAI Responses, LangChain, pydantic-ai.
    _UsageFields("input_tokens", "input_tokens_details", "cached_tokens", "cache_write_tokens"),
    _UsageFields("input_tokens", "input_token_details", "cache_read", "cache_creation"),
    _UsageFields("input_tokens", "", "cache_read_tokens", "cache_write_tokens"),
    # Gemini, which omits a zero.
    _UsageFields("prompt_token_count", "", "cached_content_token_count", "", absent=0),
    _UsageFields("promptTokenCount", "", "cachedContentTokenCount", "", absent=0),
    _UsageFields("total_input_tokens", "", "total_cached_tokens", "", absent=0),
    # Bedrock and Anthropic count the tokens of the cache separately.
    _UsageFields("inputTokens", "", "cacheReadInputTokens", "cacheWriteInputTokens", is_whole=False),
    _UsageFields(
        "input_tokens", "", "cache_read_input_tokens", "cache_creation_input_tokens", is_whole=False
    ),
)


def usage_of(reply: Any) -> Usage | None:
    """Return the usage in a provider's reply, or in its usage alone; None if it has no count of input tokens.

    It is a mapping or an SDK object of Anthropic, OpenAI, Gemini, Bedrock, LangChain or pydantic-ai, or the
    number of input tokens.
    """
    if isinstance(reply, int):
        return Usage(reply) if 0 < reply < _MOST_TOKENS else None
    try:
        held = (get(reply, name) for name in _HOLDERS)
        usage = next((each for each in held if each is not None), reply)
        fields = _fields_of(usage)
        return None if fields is None else _parsed(reply, usage, fields)
    except Exception:  # noqa: BLE001 # an object may raise anything; its usage is optional
        return None


def output_of(usage: Any) -> int | None:
    """Return the tokens that a model wrote, by a usage in the form of its provider; None if it has none."""
    counted = next((count for name in _WRITTEN if (count := _count(usage, name)) is not None), None)
    return None if counted is None else counted + (_count(usage, _THOUGHT) or 0)


def is_same_reply(one: Any, other: Any) -> bool:
    """Return whether two reports with equal usage are of one reply: one object, or equal whole replies.

    Equal counts alone may be those of two replies.
    """
    if one is other:
        return not isinstance(one, int)
    return any(get(one, name) is not None for name in _HOLDERS) and are_equal(one, other)


def _fields_of(usage: Any) -> _UsageFields | None:
    fitting = [fields for fields in _USAGE_FIELDS if _count(usage, fields.total) is not None]
    telling = (fields for fields in fitting if _read(usage, fields) is not None)
    return next(telling, fitting[-1] if fitting else None)


def _parsed(reply: Any, usage: Any, fields: _UsageFields) -> Usage | None:
    details = _details(usage, fields)
    by_time = _by_time(usage, details)
    read = _read(usage, fields)
    # LangChain counts a token that has a time only there.
    written = max(_count(details, fields.written) or 0, sum(by_time.values()))
    total = _count(usage, fields.total) or 0
    cached = (read or 0) + written
    tokens = total if fields.is_whole or _includes(usage, total, cached) else total + cached
    if tokens <= 0:
        return None
    kept_for = max(by_time, key=lambda seconds: by_time[seconds]) if any(by_time.values()) else None
    return Usage(tokens, read, written, kept_for, reason=_reason(reply, usage))


def _includes(usage: Any, total: int, cached: int) -> bool:
    """Return whether a Strands usage has another provider's count, which includes cached tokens."""
    output, whole = _count(usage, "outputTokens"), _count(usage, "totalTokens")
    return total >= cached and None not in (output, whole) and whole == total + (output or 0)


def _details(usage: Any, fields: _UsageFields) -> Any:
    return get(usage, fields.details) if fields.details else usage


def _read(usage: Any, fields: _UsageFields) -> int | None:
    read = _count(_details(usage, fields), fields.read)
    return fields.absent if read is None else read


def _by_time(usage: Any, details: Any) -> dict[int, int]:
    """Return the written tokens by the seconds for which the cache keeps them."""
    tables = (get(usage, "cache_creation"), details, get(details, "cache_write_tokens_details"))
    found = {
        seconds: count
        for table in tables
        for name, seconds in _KEPT.items()
        if (count := _count(table, name))
    }
    for detail in block_list(get(usage, "cacheDetails")):
        seconds = _KEPT_BY_NAME.get(str(get(detail, "ttl")), 0)
        found[seconds] = found.get(seconds, 0) + (_count(detail, "inputTokens") or 0)
    return {seconds: count for seconds, count in found.items() if seconds}


def _reason(reply: Any, usage: Any) -> str | None:
    """Return the reason for a cache miss; Anthropic and OpenAI give it if they are asked for it."""
    for holder in (get(reply, "diagnostics"), reply, usage):
        reason = get(holder, "cache_miss_reason")
        text = reason if isinstance(reason, str) else get(reason, "type")
        if isinstance(text, str):
            return text
    reason = get(get(reply, "prompt_cache_diagnostics"), "reason")
    return reason if isinstance(reason, str) else None


def _count(table: Any, name: str) -> int | None:
    count = get(table, name) if name else None
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MOST_TOKENS
    return count if is_count else None
