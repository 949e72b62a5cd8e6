"""Values and their other forms."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any


def drained(value: Any) -> Any:
    """Look at every value: pydantic checks an `Iterable` only as it is read."""
    if isinstance(value, dict):
        return {k: drained(v) for k, v in value.items()}
    return [drained(v) for v in value] if isinstance(value, Iterator | list) else value


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a value, wherever it stands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
