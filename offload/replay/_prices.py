"""Price cards of models: the price of a million input tokens, cached or not, with its day and source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from offload.base.schema import SettingsModel, read_file
from offload.engine.policy.cache import CacheModel
from offload.errors import ConfigError, did_you_mean
from offload.messages import Usage

# For transcripts that name no model with a price.
DEFAULT_MODEL = "claude-sonnet-4-6"
# Caches that a request can choose in place of the model's usual one, by their lifetime.
_LONG = {cache.ttl: cache for cache in map(CacheModel.preset, ("anthropic-1h", "openai-12h"))}

# Only these words of a provider may stand around a model's name: with any other it may be another model.
_ROUTER = r"(?:openrouter/)?"
_CLAUDE = (
    rf"(?:{_ROUTER}anthropic/|(?:bedrock/)?(?:(?:us|us-gov|eu|apac|jp|au|global)\.)?anthropic\.)?",
    r"(?:[-@]\d{8})?(?:-v\d+:\d+)?(?:\[1m\])?",
)
_GPT = (rf"(?:{_ROUTER}openai/)?", r"(?:-\d{4}-\d\d-\d\d)?")
_GEMINI = (rf"(?:{_ROUTER}google/|gemini/|models/)?", "")
_DEEPSEEK = (rf"(?:{_ROUTER}deepseek/)?", "")


class PriceCard(SettingsModel):
    """Prices of a model's input tokens.

    Attributes:
        input: US dollars for a million tokens that are neither read from the cache nor written to it.
        cache: prices of cached tokens, in units of `input`: the name of a known cache or its figures.
        as_of: the day of these prices.
        source: the page that states them.
        limits: the requests that they apply to, if not all.
    """

    input: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    cache: CacheModel
    as_of: date
    source: str = ""
    limits: str = ""

    def dollars(self, units: float) -> float:
        """Return the dollars for so many uncached tokens."""
        return units * self.input / 1_000_000

    def units_of(self, usage: Usage) -> float:
        """Return the uncached tokens that cost as much as the input tokens of a request."""
        read = usage.read or 0
        written = usage.written * self.cache_for(usage.kept_for).write
        return usage.tokens - read - usage.written + read * self.cache.read + written

    def cache_for(self, kept_for: int | None) -> CacheModel:
        """Return the cache that keeps tokens for so many seconds, by default the usual one."""
        long = _LONG.get(kept_for)
        return self.cache.model_copy(update={"write": long.write, "ttl": long.ttl}) if long else self.cache


class PriceFile(SettingsModel):
    """A file of price cards by model name, in the table `models`."""

    models: dict[str, PriceCard]


class _PriceList(NamedTuple):
    """Cards with one source.

    Attributes:
        names: what may come before and after the name of a model.
        models: dollars, cache and limits by model.
    """

    source: str
    as_of: date
    names: tuple[str, str]
    models: Mapping[str, tuple[float, object] | tuple[float, object, str]]


def _short(tokens: int) -> str:
    return f"for prompts of up to {tokens:,} tokens; longer ones cost more"


_OFF_PEAK = "outside the peak hours of the provider, in which it costs twice as much"
# For prices without a page of the provider: a release of a public collection, and its day.
_COLLECTION = "https://pypi.org/project/genai-prices/0.2.3/"
_COLLECTED = date(2026, 11, 10)

# Prices in the standard tier.
_PRICE_LISTS: tuple[_PriceList, ...] = (
    _PriceList(
        "https://platform.claude.com/docs/en/about-claude/pricing",
        date(2026, 10, 24),
        _CLAUDE,
        {
            "claude-fable-5-1": (10, "anthropic-fable-5.1"),
            "claude-fable-5": (10, "anthropic"),
            "claude-opus-5-5": (4, "anthropic-5.5"),
            **dict.fromkeys(
                [f"claude-opus-{v}" for v in ("5", "4-8", "4-7", "4-6", "4-5")], (5, "anthropic")
            ),
            **dict.fromkeys(["claude-opus-4-1", "claude-opus-4"], (15, "anthropic")),
            "claude-sonnet-5-5": (2, "anthropic-5.5"),
            "claude-sonnet-5": (2, "anthropic"),
            **dict.fromkeys([f"claude-sonnet-{v}" for v in ("4-6", "4-5", "4")], (3, "anthropic")),
            "claude-haiku-5-5": (0.1, "anthropic", _short(100_000)),
            "claude-haiku-4-5": (1, "anthropic"),
            **dict.fromkeys(["claude-3-5-haiku", "claude-3-5-haiku-latest"], (0.8, "anthropic")),
        },
    ),
    _PriceList(
        _COLLECTION,
        _COLLECTED,
        _CLAUDE,
        dict.fromkeys(["claude-fable-5-2", "claude-mythos-5-2"], (8, "anthropic-fable-5.1")),
    ),
    _PriceList(
        "https://developers.openai.com/api/docs/pricing",
        date(2026, 10, 26),
        _GPT,
        {
            "gpt-6.1-sol": (2, {"preset": "openai", "read": 0.05}, _short(272_000)),
            "gpt-6.1-terra": (1, {"preset": "openai", "read": 0.05}, _short(272_000)),
            "gpt-6-astra": (10, "openai", _short(272_000)),
            "gpt-6-sol": (2, "openai", _short(272_000)),
            "gpt-6-luna": (0.1, "openai", _short(272_000)),
            "gpt-5.6-sol": (4, "openai", _short(272_000)),
            "gpt-5.6-terra": (2, "openai", _short(272_000)),
            "gpt-5.6-luna": (0.2, "openai", _short(272_000)),
            "gpt-5.5": (5, "openai-gpt-5", _short(272_000)),
            "gpt-5.4": (2.5, "openai-gpt-5", _short(272_000)),
            "gpt-5.4-mini": (0.75, "openai-gpt-5"),
            **dict.fromkeys(["gpt-5.3-codex", "gpt-5.2-codex", "gpt-5.2"], (1.75, "openai-gpt-5")),
            **dict.fromkeys(["gpt-5.1-codex-max", "gpt-5.1-codex", "gpt-5.1"], (1.25, "openai-gpt-5")),
            **dict.fromkeys(["gpt-5-codex", "gpt-5"], (1.25, "openai-gpt-5")),
            "gpt-5-mini": (0.25, "openai-gpt-5"),
            "gpt-4.1": (2, "openai-gpt-4.1"),
            "gpt-4.1-mini": (0.4, "openai-gpt-4.1"),
            "gpt-4o": (2.5, "openai-gpt-4o"),
            "gpt-4o-mini": (0.15, "openai-gpt-4o"),
        },
    ),
    _PriceList(
        _COLLECTION,
        _COLLECTED,
        _GPT,
        {
            "gpt-5.4-nano": (0.2, "openai-gpt-5"),
            "gpt-5-nano": (0.05, "openai-gpt-5"),
            "o3": (2, "openai-gpt-4.1"),
            "o4-mini": (1.1, "openai-gpt-4.1"),
            "gpt-4.1-nano": (0.1, "openai-gpt-4.1"),
            "gpt-4o-2024-05-13": (5, "none"),
        },
    ),
    _PriceList(
        "https://ai.google.dev/gemini-api/docs/pricing",
        date(2026, 3, 28),
        _GEMINI,
        {
            "gemini-3.1-pro-preview": (2, "gemini", _short(200_000)),
            "gemini-3-flash-preview": (0.5, "gemini"),
            "gemini-2.5-flash": (0.3, "gemini"),
        },
    ),
    _PriceList(_COLLECTION, _COLLECTED, _GEMINI, {"gemini-2.5-pro": (1.25, "gemini", _short(200_000))}),
    _PriceList(
        "https://api-docs.deepseek.com/quick_start/pricing",
        date(2026, 10, 27),
        _DEEPSEEK,
        {
            # The older name is answered by the newer model, at its price.
            **dict.fromkeys(["deepseek-flash", "deepseek-v4-flash"], (0.15, "deepseek", _OFF_PEAK)),
            "deepseek-v4-pro": (0.66, "deepseek-pro", _OFF_PEAK),
        },
    ),
)


class Prices:
    """Price cards by model name: the known ones, and those of a file, which take precedence.

    Args:
        file: a TOML, YAML or JSON file, see `PriceFile`.
        model: the model whose card applies to every transcript.

    Raises:
        ConfigError: the file has an invalid value, or no card has the name `model`.
    """

    def __init__(self, file: Path | None = None, model: str | None = None) -> None:
        self._cards = _known_cards()
        if file is not None:
            self._cards |= _cards_in(file)
        self._model = model
        if model is not None and self.named(model) is None:
            raise ConfigError(
                f"no prices for the model {model!r}: name one of {', '.join(self._cards)}, "
                f"or give your prices with --prices FILE{did_you_mean(model, self._cards)}"
            )

    @property
    def cards(self) -> Mapping[str, PriceCard]:
        """The cards by the name of their model."""
        return self._cards

    def of(self, model: str | None) -> tuple[str, PriceCard]:
        """Return name and card for a transcript of a model; without one, those of `DEFAULT_MODEL`.

        Raises `ConfigError` for a model whose price is not known.
        """
        model = self._model or model or DEFAULT_MODEL
        name = self.named(model)
        if name is None:
            raise ConfigError(
                f"the price of {model!r} is not known: give it with --prices FILE, or name a model whose "
                "prices are used with --model NAME"
            )
        return name, self._cards[name]

    def knows(self, model: str | None) -> bool:
        """Return whether there is a card for a transcript of a model."""
        return self.named(self._model or model or "") is not None

    def named(self, model: str) -> str | None:
        """Return the name of the card for a model: its own, or a known one's without date and provider."""
        return model if model in self._cards else _known_name(model)


def _known_name(model: str) -> str | None:
    for price_list in _PRICE_LISTS:
        before, behind = price_list.names
        for name in price_list.models:
            if re.fullmatch(before + re.escape(name) + behind, model):
                return name
    return None


def _cards_in(file: Path) -> dict[str, PriceCard]:
    fields = read_file(file)
    try:
        return PriceFile.model_validate(fields).models
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _known_cards() -> dict[str, PriceCard]:
    return {
        name: _card(price_list, *figures)
        for price_list in _PRICE_LISTS
        for name, figures in price_list.models.items()
    }


def _card(price_list: _PriceList, dollars: float, cache: object, limits: str = "") -> PriceCard:
    fields = {
        "input": dollars,
        "cache": cache,
        "as_of": price_list.as_of,
        "source": price_list.source,
        "limits": limits,
    }
    return PriceCard.model_validate(fields)
