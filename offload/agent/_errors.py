"""The texts and statuses in errors of providers, raised or wrapped by any SDK; no SDK is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MOST_CHARS = 20_000
_MOST_ERRORS = 20


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
