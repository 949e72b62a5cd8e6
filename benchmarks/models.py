"""Writes `offload/engine/policy/models.json`: windows and prices of models, of the installed genai-prices.

`make models` installs that release. Review the difference: `models.py` beside it has what it lacks.

    python benchmarks/models.py [DAY OF THE RELEASE]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices.data import providers

OUT = Path(__file__).parents[1] / "offload/engine/policy/models.json"
# The companies that make them; others may sell the same model for another price.
OWNERS = ("anthropic", "openai", "google", "deepseek", "moonshotai", "minimax", "zai", "x-ai", "mistral")
MADE = (
    r"(?:claude|gpt-|chatgpt-|o[134](?!\w)|gemini-|deepseek-|kimi-|minimax-|glm-|grok-|mistral-|devstral|"
    r"magistral)"
)
NO_TEXT = (
    r"embed|tts|image|audio|realtime|transcribe|live|voice|ocr|omni|robotics|nano-banana|search|^ft|\.ft-|:"
)
_OTHERS = {"google": "claude|gemma", "mistral": "deepseek|glm"}


def main() -> None:
    """Write a line for each model, sorted by name."""
    made = {name: row for owner in OWNERS for name, row in _models(owner)}
    release = version("genai-prices")
    as_of = sys.argv[1] if len(sys.argv) > 1 else datetime.now(UTC).date().isoformat()
    head = {"source": f"https://pypi.org/project/genai-prices/{release}/", "as_of": as_of}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(made.items()))
    OUT.write_text(f'{json.dumps(head)[:-1]}, "models": {{\n{lines}\n}}}}\n')


def _models(owner: str) -> Iterator[tuple[str, dict[str, Any]]]:
    provider = next(each for each in providers if each.id == owner)
    for model in provider.models:
        name = model.id.lower()
        is_made = re.match(MADE, name) and not re.match(_OTHERS.get(owner, "^$"), name)
        if is_made and not re.search(NO_TEXT, name):
            prices = [*filter(None, map(_price, _conditional(model.prices)))]
            row = {"also": _also(name, model.match), "window": model.context_window, "prices": prices}
            if model.context_window or prices:
                yield name, {key: value for key, value in row.items() if value}


def _conditional(prices: Any) -> list[tuple[Any, Any]]:
    """Return the prices of a model with their conditions, those of the peak hours left out."""
    if not isinstance(prices, list):
        return [(None, prices)]
    is_timed = any(hasattr(each.constraint, "start_time") for each in prices)
    some = [(each.constraint, each.prices) for each in prices if not hasattr(each.constraint, "start_time")]
    return [(_OffPeak(constraint) if is_timed else constraint, price) for constraint, price in some]


class _OffPeak:
    def __init__(self, constraint: Any) -> None:
        self.start_date = getattr(constraint, "start_date", None)


def _price(conditional: tuple[Any, Any]) -> dict[str, Any] | None:
    """Return a price in dollars for a million tokens; None without one for cached tokens."""
    constraint, price = conditional
    figures = {
        "input": getattr(price, "input_mtok", None),
        "read": getattr(price, "cache_read_mtok", None),
        "write": getattr(price, "cache_write_mtok", None),
        "hour": getattr(price, "cache_write_1h_mtok", None),
        "output": getattr(price, "output_mtok", None),
    }
    if figures["input"] is None or figures["read"] is None:
        return None
    since = getattr(constraint, "start_date", None)
    row: dict[str, Any] = {} if since is None else {"since": since.isoformat()}
    row |= {name: float(getattr(each, "base", each)) for name, each in figures.items() if each is not None}
    tiers = getattr(figures["input"], "tiers", ())
    row |= {"up_to": tiers[0].start} if tiers else {}
    return row | ({"off_peak": True} if isinstance(constraint, _OffPeak) else {})


def _also(name: str, match: Any) -> list[str]:
    """Return the other whole names of a model; dates and dots are read at the look-up."""
    inner = getattr(match, "or_", None) or [match]
    found = {getattr(each, "equals", None) or getattr(each, "starts_with", None) or "" for each in inner}
    dated = r"-\d{4}-\d\d-\d\d$|[-@]\d{8}$|-latest$"
    plain = {re.sub(r"(?<=\d)\.(?=\d)", "-", re.sub(dated, "", each.lower())) for each in found}
    own = re.sub(r"(?<=\d)\.(?=\d)", "-", name)
    return sorted({each for each in plain if re.fullmatch(MADE + r"[\w.-]*\w", each)} - {own})


if __name__ == "__main__":
    main()
