"""Offloaders of an integration: one per conversation of its framework, or one for all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Unpack

from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store

# Offloaders, with their histories, kept open; a session beyond these is opened again from the store.
_OPEN = 256


class Sessions:
    """The sessions of one store, opened on demand. The arguments are those of `Offloader`.

    Attributes:
        session: name of the session for all conversations, or None for one session per conversation.
        own: the offloader of `session`, otherwise of a new session.
        open: returns a new offloader of a session, given as `session=name`.

    Raises:
        ConfigError: as for `Offloader`.
    """

    def __init__(
        self,
        store: Any,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        self.open = partial(Offloader, open_store(store, storage_options=storage_options), **options)
        self.session = session
        self.own = self.open(session=session)
        self._named = lru_cache(_OPEN)(lambda name, _list: self.open(session=name))

    def named(self, name: str | None, messages: str = "") -> Offloader:
        """Return the offloader of the conversation `name`.

        Args:
            name: name of the conversation, None for a conversation without one.
            messages: name of the message list; each list of a conversation needs its own offloader.

        Raises:
            ConfigError: `name` is not a valid session name.
        """
        return self.own if name is None or self.session is not None else self._named(name, messages)


def is_error(answer: str) -> bool:
    """Return whether a retrieval tool's answer is an error."""
    return answer.startswith("Error: ")
