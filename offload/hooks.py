"""What a caller's own functions have to say: which items leave, what is cut out, what sums them up."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from offload.errors import ConfigError
from offload.policy import ItemFacts
from offload.record import encodable

if TYPE_CHECKING:
    import asyncio

MAX_SUMMARY_CHARS = 1000

ShouldOffload = Callable[[ItemFacts], bool | Awaitable[bool]]
Redact = Callable[[str], str | Awaitable[str]]
Summarizer = Callable[[str], str | Awaitable[str]]

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("offload")
# The loop of the coroutine that waits for this thread, where there is one.
_waiting: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("_waiting", default=None)


@dataclass(frozen=True, slots=True)
class Hooks:
    """A caller's functions, each plain or async; one that is None has nothing to say.

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
        return self.should_offload is None or bool(settled(self.should_offload(item)))

    def redacted(self, text: str) -> str:
        """Return what of `text` may be stored. Raises `ConfigError` if that is no text."""
        return text if self.redact is None else _text("redact", settled(self.redact(text)))

    def summary(self, text: str) -> str | None:
        """Return a summary of `text`, cut to 1,000 characters; None if there is none, or it failed."""
        if self.summarizer is None:
            return None
        try:
            said = _text("summarizer", settled(self.summarizer(text)))
        except Exception as error:  # noqa: BLE001 # the item is no worse off without a summary
            _log.warning("a summary failed, its item goes without: %s", type(error).__name__)
            return None
        return encodable(said).strip()[:MAX_SUMMARY_CHARS] or None


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `function` returns in a thread; async hooks that it meets run on the loop that waits."""
    import asyncio  # noqa: PLC0415 # 28 ms that only async callers pay, who have it loaded

    _waiting.set(asyncio.get_running_loop())
    return await asyncio.to_thread(function, *args, **kwargs)


def settled(value: Any) -> Any:
    """Return the result of a caller's function, waiting for it where it is async.

    Raises `ConfigError` if it is async and this thread's event loop is what waits.
    """
    if not inspect.isawaitable(value):
        return value
    import asyncio  # noqa: PLC0415 # the same

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop = _waiting.get()
        if loop is None:
            return asyncio.run(_await(value))
        return asyncio.run_coroutine_threadsafe(_await(value), loop).result()
    if inspect.iscoroutine(value):
        value.close()
    raise ConfigError("an async function cannot run here: the event loop is this thread's; use aoffload()")


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} returns a str, not {type(value).__name__}")
    return value
