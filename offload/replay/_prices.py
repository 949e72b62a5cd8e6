"""Price cards of models: the price of a million tokens, cached or not, with its day and source."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from offload.base.schema import Seconds, SettingsModel, read_file
from offload.engine.policy.cache import CacheModel, fields_of
from offload.engine.policy.models import KnownModel, Price, known_model, names_of_models
from offload.errors import ConfigError, did_you_mean
from offload.messages import Usage

# For transcripts that name no model with a price.
DEFAULT_MODEL = "claude-sonnet-4-6"


class PriceCard(SettingsModel):
    """Prices of a model's tokens.

    Attributes:
        input: US dollars for a million tokens that are neither read from the cache nor written to it.
        cache: prices of cached tokens, in units of `input`: the name of a model with these or its figures.
        as_of: the day of these prices.
        source: the page that states them.
        limits: the requests that they apply to, if not all.
        lifetimes: prices of writing a token that is kept for so many seconds, in units of `input`.
        output: US dollars for a million tokens that the model writes; None if that is not known.
        up_to: the input tokens of the longest request with these prices; None for any.
    """

    input: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    cache: CacheModel
    as_of: date
    source: str = ""
    limits: str = ""
    lifetimes: dict[Seconds, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    output: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    up_to: int | None = None

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
        write = self.lifetimes.get(kept_for or 0)
        return (
            self.cache if write is None else self.cache.model_copy(update={"write": write, "ttl": kept_for})
        )


class PriceFile(SettingsModel):
    """A file of price cards by model name, in the table `models`."""

    models: dict[str, PriceCard]


class Prices:
    """Price cards by model name: the known ones, and those of a file, which take precedence.

    Args:
        file: a TOML, YAML or JSON file, see `PriceFile`.
        model: the model whose card applies to every transcript.

    Raises:
        ConfigError: the file has an invalid value, or no card has the name `model`.
    """

    def __init__(self, file: Path | None = None, model: str | None = None) -> None:
        self._own = {} if file is None else _cards_in(file)
        self._model = model
        if model is not None and self.named(model) is None:
            names = [*self._own, *filter(self.named, names_of_models())]
            raise ConfigError(
                f"no prices for the model {model!r}: name one of {', '.join(names)}, "
                f"or give your prices with --prices FILE{did_you_mean(model, names)}"
            )

    def of(self, model: str | None, on: date | None = None) -> tuple[str, PriceCard]:
        """Return name and card for a transcript of a model; without one, those of `DEFAULT_MODEL`.

        `on` is the day of the prices, by default today. Raises `ConfigError` for a model whose price is not
        known.
        """
        model = self._model or model or DEFAULT_MODEL
        name = self.named(model, on)
        if name is None:
            raise ConfigError(
                f"the price of {model!r} is not known: give it with --prices FILE, or name a model whose "
                "prices are used with --model NAME"
            )
        return name, self._own.get(name) or _known_card(model, on)

    def knows(self, model: str | None) -> bool:
        """Return whether there is a card for a transcript of a model."""
        return self.named(self._model or model or "") is not None

    def named(self, model: str, on: date | None = None) -> str | None:
        """Return the name of the card for a model: its own, or a known one's without date and provider."""
        if model in self._own:
            return model
        known = known_model(model)
        return None if known is None or known.price(on) is None else known.name


def _cards_in(file: Path) -> dict[str, PriceCard]:
    fields = read_file(file)
    try:
        return PriceFile.model_validate(fields).models
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _known_card(model: str, on: date | None) -> PriceCard:
    known = cast("KnownModel", known_model(model))
    price = cast("Price", known.price(on))
    return PriceCard(
        input=price.input,
        cache=CacheModel(**cast("dict[str, Any]", fields_of(model, on=on))),
        as_of=known.as_of,
        source=known.source,
        limits=price.limits,
        lifetimes={kept: dollars / price.input for kept, dollars in price.lifetimes.items()},
        output=price.output,
        up_to=price.up_to,
    )
