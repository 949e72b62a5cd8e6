"""What a caller's own functions have to say: which items leave, what is cut out, what sums them up."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from offload.errors import ConfigError
from offload.policy import ItemFacts
from offload.record import encodable
from offload.threads import call_hook

MAX_SUMMARY_CHARS = 1000
# So long a hook may take for one item.
HOOK_SECONDS = 60.0

ShouldOffload = Callable[[ItemFacts], bool | Awaitable[bool]]
Redact = Callable[[str], str | Awaitable[str]]
Summarizer = Callable[[str], str | Awaitable[str]]

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class Hooks:
    """A caller's functions, each plain or async; one that is None has nothing to say.

    An async one that takes over 60 seconds for an item has failed. They are called from
    several threads where the caller offloads from several, and may not use the offloader that calls them.

    Attributes:
        should_offload: asked of each item that the policy lets go; an answer that is false keeps it.
        redact: returns a text without what must not be stored; applied once, before preview and record.
        summarizer: returns a few sentences on a text, for its placeholder.
    """

    should_offload: ShouldOffload | None = None
    redact: Redact | None = None
    summarizer: Summarizer | None = None

    def __post_init__(self) -> None:
        for name in ("should_offload", "redact", "summarizer"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"{name} is a function, not {type(getattr(self, name)).__name__}")

    def lets_go(self, item: ItemFacts) -> bool:
        """Tell whether an item may leave, as far as the caller is concerned."""
        return self.should_offload is None or bool(_asked(self.should_offload, item))

    def redacted(self, text: str) -> str:
        """Return what of `text` may be stored. Raises `ConfigError` if that is no text."""
        return text if self.redact is None else _text("redact", _asked(self.redact, text))

    def summary(self, text: str) -> str | None:
        """Return a summary of `text`, cut to 1,000 characters; None if there is none, or it failed."""
        if self.summarizer is None:
            return None
        try:
            said = _text("summarizer", _asked(self.summarizer, text))
        except Exception as error:  # noqa: BLE001 # the item is no worse off without a summary
            _log.warning("a summary failed, its item goes without: %s", type(error).__name__)
            return None
        return encodable(said).strip()[:MAX_SUMMARY_CHARS] or None


def _asked(hook: Callable[..., Any], about: object) -> Any:
    return call_hook(hook, about, seconds=HOOK_SECONDS)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} returns a str, not {type(value).__name__}")
    return value
