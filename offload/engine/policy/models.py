"""The table of models: their names, rules for thinking, windows, prices and prompt caches.

Windows and prices are in `models.json`, from a public collection; `make models` renews it. All else is here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from offload.base.patterns import lazy_pattern
from offload.base.threads.locks import NO_FORK

HistoryRule = Literal["auto", "append_only", "editable", "rewrite"]
# The provider's answer if a message before signed thinking changed: "binds" refuses the thinking behind the
# change, "free" accepts all, "required" accepts it and refuses a tool call without its thinking.
Answer = Literal["binds", "free", "required"]

_CLAUDE = "https://platform.claude.com/docs/en/build-with-claude/preserved-thinking"
_CLAUDE_CACHE = "https://platform.claude.com/docs/en/build-with-claude/prompt-caching"
_OPENAI = "https://developers.openai.com/api/docs/guides/prompt-caching"
_REASONING = "https://developers.openai.com/api/docs/guides/reasoning"
_GOOGLE = "https://ai.google.dev/gemini-api/docs/thought-signatures"
_VERTEX = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/models"
_GOOGLE_CACHE = f"{_VERTEX}/context-cache/context-cache-overview"
_DEEPSEEK = "https://api-docs.deepseek.com/guides/thinking_mode"
_DEEPSEEK_CACHE = "https://api-docs.deepseek.com/guides/kv_cache"
_KIMI = "https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model"
_MINIMAX = "https://platform.minimax.io/docs/guides/text-m2-function-call"
_GLM = "https://docs.z.ai/guides/capabilities/thinking-mode"


class KnownThinking(NamedTuple):
    """The answer of the provider of some models to a change before signed thinking.

    Attributes:
        models: their names, for a person.
        names: a regular expression of their names in small letters, with `-` in place of dots.
        answer: the answer.
        source: the page that states it, or that states no such check.
        as_of: the month of that page.
    """

    models: str
    names: str
    answer: Answer
    source: str
    as_of: str


# "claude-opus-5" is an older model than "claude-opus-5-5": a name must match as a whole. The first one wins.
THINKING: Sequence[KnownThinking] = (
    KnownThinking(
        "Claude Fable 5.1 and 5.2, Mythos 5.1 and 5.2, Opus 5.5, Sonnet 5.5, Haiku 5.5",
        r"claude-(?:fable|mythos)-5-[12]|claude-(?:opus|sonnet|haiku)-5-5",
        "binds",
        _CLAUDE,
        "2026-11",
    ),
    KnownThinking(
        "Claude Opus 5, Sonnet 5, Fable 5, Mythos 5 and Mythos Preview, Claude 4 and older",
        r"claude-(?:opus|sonnet|fable|mythos)-5|claude-mythos-preview|claude-(?:opus|sonnet|haiku)-4(?:-\d)?|"
        r"claude-(?:3|4|5)(?:-[05678])?-(?:opus|sonnet|haiku)|claude-(?:v?[12]|instant)(?:[-:]\d)*",
        "free",
        _CLAUDE,
        "2026-11",
    ),
    KnownThinking("Claude that is not named here", r"claude-[\w-]+", "binds", _CLAUDE, "2026-11"),
    KnownThinking(
        "GPT, o1, o3, o4", r"(?:chat)?gpt-[\w-]+|o[134](?:-[\w-]+)?", "free", _REASONING, "2026-11"
    ),
    KnownThinking("Gemini", r"gemini-[\w-]+", "free", _GOOGLE, "2026-11"),
    KnownThinking("DeepSeek", r"deepseek-[\w-]+", "required", _DEEPSEEK, "2026-11"),
    KnownThinking("Kimi", r"(?:kimi|moonshot)-[\w-]+", "required", _KIMI, "2026-11"),
    KnownThinking("MiniMax", r"minimax-[\w-]+", "required", _MINIMAX, "2026-11"),
    KnownThinking("GLM", r"glm-[\w-]+", "required", _GLM, "2026-11"),
)


class KnownCache(NamedTuple):
    """The time that the provider of some models keeps a prompt, and where a request finds it.

    Attributes:
        names: as in `KnownThinking`, like `source` and `as_of`.
        ttl: seconds after the last use; None if nothing is published.
        lookback: as in `CacheModel`.
        lifetimes: the price of writing a token that is kept for so many seconds, relative to the input price.
    """

    models: str
    names: str
    ttl: int | None
    lookback: int | None
    lifetimes: Mapping[int, float]
    source: str
    as_of: str


_GPT_TO_5_5 = r"gpt-5(?:-[1-5])?(?:-[a-z][\w-]*)?|gpt-[34]\w*(?:-[\w-]+)?|o[134](?:-[\w-]+)?"
_GPT_FROM_5_6 = r"gpt-(?:5-[6-9]|[6-9])[\w-]*"
# Where a provider promises no lifetime, `ttl` is the shortest that its page gives. For Gemini, whose page has
# only a maximum of 24 hours, it is an hour.
CACHES: Sequence[KnownCache] = (
    KnownCache("Claude", r"claude-[\w-]+", 300, 20, {3600: 2.0}, _CLAUDE_CACHE, "2026-11"),
    KnownCache("GPT-5.5 and older", _GPT_TO_5_5, 300, None, {}, _OPENAI, "2026-11"),
    KnownCache("GPT-5.6 and later", _GPT_FROM_5_6, 1800, None, {43_200: 2.5}, _OPENAI, "2026-11"),
    KnownCache("Gemini", r"gemini-[\w-]+", 3600, None, {}, _GOOGLE_CACHE, "2026-11"),
    KnownCache("DeepSeek", r"deepseek-[\w-]+", 7200, None, {}, _DEEPSEEK_CACHE, "2026-11"),
)


T = TypeVar("T", KnownThinking, KnownCache)


class Price(NamedTuple):
    """Prices of a model in dollars for a million tokens, in the standard tier.

    Attributes:
        since: the first day on which they apply; None for always.
        input: for tokens that are neither read from the cache nor written to it.
        read: for tokens that are read from the cache.
        write: for tokens that are written to it.
        lifetimes: for tokens that are kept for so many seconds, if not as usual.
        limits: the requests that they apply to, if not all.
        output: for tokens that the model writes; None if that is not known.
        up_to: the tokens of the longest prompt with these prices; None for any.
    """

    since: date | None
    input: float
    read: float
    write: float
    lifetimes: Mapping[int, float]
    limits: str
    output: float | None = None
    up_to: int | None = None


class KnownModel(NamedTuple):
    """All that is known of a model.

    Attributes:
        name: its name in the table; empty if only its family is known.
        thinking: its provider's answer; None if that is not known.
        window: the tokens of a request that it takes; None if that is not known.
        prices: its prices, the earliest first; empty if they are not known.
        cache: of its family; None if it is not known.
        source: the page with its prices, and `as_of` the day of that page.
    """

    name: str
    thinking: Answer | None
    window: int | None
    prices: Sequence[Price]
    cache: KnownCache | None
    source: str
    as_of: date

    def price(self, on: date | None = None) -> Price | None:
        """Return the prices of a day, by default today; None if they are not known."""
        on = on or datetime.now(UTC).date()
        return next((one for one in reversed(self.prices) if one.since is None or one.since <= on), None)


# Models and prices that the collection lacks, by the pages of the providers on that day.
_OWN_AS_OF = date(2026, 11, 28)
_OWN_SOURCES = {
    "claude": "https://platform.claude.com/docs/en/about-claude/pricing",
    "gpt": "https://developers.openai.com/api/docs/pricing",
    "gemini": "https://ai.google.dev/gemini-api/docs/pricing",
}
_OWN: Mapping[str, Any] = {
    "claude-mythos-5": {
        "window": 1_000_000,
        "prices": [{"input": 10, "read": 1, "write": 12.5, "output": 50}],
    },
    "claude-mythos-5-1": {
        "window": 1_000_000,
        "prices": [{"input": 10, "read": 0.25, "write": 12.5, "output": 50}],
    },
    "gpt-6.2-astra": {"prices": [{"input": 8, "read": 0.4, "write": 10, "output": 40, "up_to": 272_000}]},
    "gpt-6.2-sol": {"prices": [{"input": 2, "read": 0.1, "write": 2.5, "output": 10, "up_to": 272_000}]},
    "gemini-4-carbon": {
        "prices": [
            {"input": 2, "read": 0.1, "output": 10},
            {"since": "2026-12-01", "input": 4, "read": 0.2, "output": 20},
        ]
    },
    "gemini-4-hydrogen": {"prices": [{"input": 1.5, "read": 0.075, "output": 7.5}]},
    "gemini-4-neon": {"prices": [{"input": 3, "read": 0.15, "output": 15}]},
}
# Input windows where a page states another one, or a whole of which a part is for the answer: OpenAI keeps
# 128,000 tokens of 1,050,000 or 400,000 for that. The first match wins.
_WINDOWS: Mapping[str, int] = {
    r"claude-v2:1|claude-2-1": 200_000,
    r"claude-(?:v?[12](?:-[03])?|instant(?:-[\w-]+)?)": 100_000,
    r"gpt-5(?:-\d)?-chat|gpt-5-pro": 128_000,
    r"gpt-(?:5-[456]|6(?:-\d)?)(?!-(?:mini|nano|cyber|image))(?:-[\w-]+)?": 922_000,
    r"gpt-5(?:-[\w-]+)?": 272_000,
    r"gpt-4-1(?:-[\w-]+)?": 1_047_576,
    r"gpt-4-5(?:-[\w-]+)?": 128_000,
    r"gpt-4-32k(?:-\d+)?": 32_768,
    r"gpt-oss-[\w-]+": 131_072,
    r"gemini-[\w-]+-image(?:-[\w-]+)?": 32_768,
    r"gemini-(?:1-0-)?pro-vision[\w-]*": 12_288,
    r"gemini-(?:1-0-)?pro": 30_720,
    r"gemini-[1-9][\w-]*|gemini-(?:pro|flash|flash-lite)-latest": 1_048_576,
    r"deepseek-(?:chat|reasoner|r1|v3)[\w-]*": 128_000,
}
# Those of a family, for models that have none above nor in the collection.
_FAMILY_WINDOWS = {r"claude-[\w-]+": 200_000, r"o[134](?:-[\w-]+)?": 200_000, r"gpt-4o-[\w-]+": 128_000}

# Around a model's name: a provider, a region or a router, a date, a version, the size of the window. A list
# of models, of which any may answer, is not a name.
_AROUND = lazy_pattern(
    r"(?P<before>(?:[^,\s]*[/.:])?)(?P<name>[a-z][\w-]*?)"
    r"(?P<behind>(?:[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest|default|v\d+(?::\d+)?)|:\d+|\[1m\])*)"
)
# With other words than these, the price may be another: of a fine-tuned model, or of a host of open weights,
# which a cloud is too.
_OWNERS = {
    "claude": "anthropic",
    **dict.fromkeys(("gpt", "chatgpt", "o1", "o3", "o4"), "openai"),
    "gemini": "google|gemini",
    "grok": "x-ai|xai",
    "deepseek": "deepseek",
    "kimi": "moonshotai|moonshot",
    "minimax": "minimax",
    "glm": "z-ai|zai",
    **dict.fromkeys(("mistral", "devstral", "magistral"), "mistralai|mistral"),
}
_OPEN = ("deepseek", "kimi", "minimax", "glm", "mistral", "devstral", "magistral")
_CLOUD = (
    r"(?:(?:bedrock|converse|vertex_ai|azure|azure_ai|models)/|arn:aws[\w-]*:bedrock:[\w-]*:\d*:[\w-]+/|"
    r"projects/[\w-]+/locations/[\w-]+/|publishers/\w+/)*(?:(?:us|us-gov|eu|apac|jp|au|global)\.)?"
)
_SOLD_BEHIND = lazy_pattern(r"(?:[-@]\d{8}|-\d{4}-\d\d-\d\d|@default)?(?:-v\d+:\d+|-v1)?(?:\[1m\])?")


@lru_cache(maxsize=256)
def known_model(name: str | None) -> KnownModel | None:
    """Return what is known of a model by its name at a provider, a cloud or a router; None if nothing."""
    match = _AROUND.fullmatch(_dashed(name or ""))
    if match is None:
        return None
    whole, bare = match["name"] + match["behind"], match["name"]
    rows = _rows()
    found = next((rows.names[each] for each in (whole, bare) if each in rows.names), "")
    known = _first(THINKING, bare) or _first(THINKING, whole)
    if not found and known is None:
        return None
    cache = _first(CACHES, bare)
    row = rows.models.get(found, {})
    is_dated = _dashed(found) == whole or _SOLD_BEHIND.fullmatch(match["behind"])
    is_sold = is_dated and _is_sold(bare, match["before"])
    is_own = found in _OWN
    return KnownModel(
        name=found,
        thinking=None if known is None else known.answer,
        window=_window(whole, bare, row.get("window")),
        prices=[*_prices(row, cache)] if is_sold else (),
        cache=cache,
        source=_OWN_SOURCES[found.partition("-")[0]] if is_own else rows.source,
        as_of=_OWN_AS_OF if is_own else rows.as_of,
    )


def names_of_models() -> Sequence[str]:
    """Return the names of all models with a row of their own."""
    return sorted(_rows().models)


class Fact(NamedTuple):
    """A statement about some models on a page, and its day."""

    about: str
    models: str
    as_of: date
    source: str


def facts() -> Iterator[Fact]:
    """Yield all facts of the table with their pages."""
    for about, known in (("thinking", THINKING), ("cache", CACHES)):
        for one in known:
            yield Fact(about, one.models, date.fromisoformat(f"{one.as_of}-01"), one.source)
    rows = _rows()
    yield Fact("prices", f"{len(rows.models) - len(_OWN)} models", rows.as_of, rows.source)
    for owner, source in _OWN_SOURCES.items():
        yield Fact("prices", ", ".join(name for name in _OWN if name.startswith(owner)), _OWN_AS_OF, source)


class _Collected(NamedTuple):
    """The rows by the name of their model, and these names by all others as they are looked up."""

    models: Mapping[str, Any]
    names: Mapping[str, str]
    source: str
    as_of: date


@lru_cache(maxsize=1)
def _rows() -> _Collected:
    with NO_FORK:
        from pathlib import Path  # noqa: PLC0415 # only a model needs it

    collected = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
    rows = collected["models"] | _OWN
    others = {other: name for name, row in rows.items() for other in row.get("also", ())}
    names = others | {_dashed(name): name for name in rows}
    return _Collected(rows, names, collected["source"], date.fromisoformat(collected["as_of"]))


def _dashed(name: str) -> str:
    """Return a name in small letters; some write a version with a dot."""
    return re.sub(r"(?<=\d)\.(?=\d)", "-", name.strip().lower())


def _first(known: Sequence[T], bare: str) -> T | None:
    return next((one for one in known if re.fullmatch(one.names, bare)), None)


def _is_sold(bare: str, before: str) -> bool:
    """Return whether a model has the price of its owner with some words before its name."""
    family = bare.partition("-")[0]
    cloud = "" if family in _OPEN else _CLOUD
    owner = _OWNERS.get(family, "")
    return re.fullmatch(rf"(?:openrouter/)?{cloud}(?:(?:{owner})[./])?(?:models/)?", before) is not None


def _window(whole: str, bare: str, listed: int | None) -> int | None:
    by_page = (n for names, n in _WINDOWS.items() if re.fullmatch(names, whole) or re.fullmatch(names, bare))
    of_family = (n for names, n in _FAMILY_WINDOWS.items() if re.fullmatch(names, bare))
    return next(by_page, None) or listed or next(of_family, None)


def _prices(row: Mapping[str, Any], cache: KnownCache | None) -> Iterator[Price]:
    for one in row.get("prices", ()):
        long = (
            {} if cache is None else {kept: one["input"] * times for kept, times in cache.lifetimes.items()}
        )
        limits = (
            f"for prompts of up to {one['up_to']:,} tokens; longer ones cost more" if "up_to" in one else ""
        )
        yield Price(
            date.fromisoformat(one["since"]) if "since" in one else None,
            one["input"],
            one["read"],
            one.get("write", one["input"]),
            long | ({3600: one["hour"]} if "hour" in one else {}),
            "outside the peak hours of the provider, in which it costs twice as much"
            if "off_peak" in one
            else limits,
            one.get("output"),
            one.get("up_to"),
        )
