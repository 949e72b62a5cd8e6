"""The caller's functions: which items may be offloaded, how texts are redacted and summarized."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Struct

from offload.base.binary import readable_text
from offload.base.text import escape_surrogates
from offload.base.threads.calls import call_hook, host_code
from offload.engine.policy import ItemFacts
from offload.errors import ConfigError, OffloadError, check_callable, failure
from offload.messages.base import Item
from offload.messages.stored import map_texts
from offload.records.record.titles import first_line_of, title_of

MAX_SUMMARY_CHARS = 1000
# Time limit of an async hook for one item; no other call waits longer for other code of the caller either.
HOOK_SECONDS = 60.0

ShouldOffload = Callable[[ItemFacts], bool | Awaitable[bool]]
Redact = Callable[[str], str | Awaitable[str]]
ItemSummarizer = Callable[[str], str | Awaitable[str]]

_log = logging.getLogger("offload")


class Hooks(Struct, frozen=True, eq=False):
    """Functions of the caller, each plain or async; None has no effect.

    An async hook fails after 60 seconds for one item. Hooks run in every thread that offloads, and may only
    read from the offloader that runs them. `Offloader` describes each.
    """

    should_offload: ShouldOffload | None = None
    redact: Redact | None = None
    summarizer: ItemSummarizer | None = None

    def __post_init__(self) -> None:
        for name in ("should_offload", "redact", "summarizer"):
            check_callable(name, getattr(self, name))

    def approves(self, item: ItemFacts) -> bool:
        """Return whether `should_offload` lets an item be offloaded. Raises `OffloadError` if it failed."""
        return self.should_offload is None or bool(_call("should_offload", self.should_offload, item, ""))

    def redacted(self, text: str) -> str:
        """Return the part of `text` that may be stored; of JSON, each text in it is redacted unescaped too.

        Raises `OffloadError` if the hook failed; it quotes no part of the text.
        """
        if self.redact is None:
            return text
        redacted = _str_of("redact", _call("redact", self.redact, text, text))
        if "\\" not in redacted or not redacted.lstrip().startswith(("{", "[", '"')):
            return redacted
        try:
            value = json.loads(redacted)
        except (ValueError, RecursionError):
            return redacted
        inner = map_texts(value, self.redacted)
        return redacted if inner == value else json.dumps(inner, ensure_ascii=False)

    def to_store(self, item: Item) -> str:
        """Return the text of an item that may be stored; images and documents are not redacted.

        Of one that is read decoded, it is the decoded text if something was removed from that.
        """
        if self.redact is None or item.media is not None:
            return item.text
        shown = readable_text(item.text)
        redacted = self.redacted(shown)
        return item.text if redacted == shown else redacted

    def title(self, item: Item, stored: str) -> str | None:
        """Return the title of an item whose text is stored as `stored`; `redact` is applied to it.

        The hook gets the whole main argument of the tool call, since what it removes may be anywhere.
        """
        subject, title = item.subject, None
        if subject is not None:
            title = title_of(self.redacted(subject.text), subject.kind)
        return title or (first_line_of(stored) if item.media is None else None)

    def summary(self, text: str) -> str | None:
        """Return a summary of `text`, cut to 1,000 characters; None if there is none, or it failed."""
        if self.summarizer is None:
            return None
        try:
            summary = _str_of("summarizer", _call("summarizer", self.summarizer, text, text))
        except OffloadError as error:  # An item can be offloaded without a summary.
            _log.warning("a summarizer failed, so an item has no summary: %s", error)
            return None
        return escape_surrogates(summary).strip()[:MAX_SUMMARY_CHARS] or None


def host_call() -> AbstractContextManager[None]:
    """Run other code of the caller in a block, such as a token counter; see `host_code`."""
    return host_code(HOOK_SECONDS)


def _call(name: str, hook: Callable[..., Any], about: object, content: str) -> Any:
    """Return the answer of a hook; its exception becomes an `OffloadError` that quotes no `content`."""
    try:
        return call_hook(hook, about, seconds=HOOK_SECONDS)
    except Exception as error:
        raise failure(f"{name}:", error, content) from error


def _str_of(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must return a str, got {type(value).__name__}")
    return value
