"""The offloaders of an integration: one for each conversation of its framework, or one for all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store

# Conversations whose histories are remembered; one that comes back later is looked up in the store.
_OPEN = 256


class Sessions:
    """Opens the sessions of a store, each once.

    Args:
        store: as for `Offloader`.
        session: the one session of all; without one each name has a session.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes.

    Attributes:
        own: the offloader of the one session; without one its session is new, and no name has it.
        is_shared: whether all have one session.

    Raises:
        ConfigError: as for `Offloader`.
    """

    def __init__(
        self,
        store: Any,
        session: str | None,
        storage_options: Mapping[str, Any] | None,
        options: OptionArguments,
    ) -> None:
        opened = open_store(store, storage_options=storage_options)
        self.own = Offloader(opened, session=session, **options)
        self.is_shared = session is not None
        self._named = lru_cache(_OPEN)(lambda name: Offloader(opened, session=name, **options))

    def named(self, name: str | None) -> Offloader:
        """Return the offloader of what is called `name`.

        Raises:
            ConfigError: no session can have that name.
        """
        return self.own if name is None or self.is_shared else self._named(name)


def is_error(answer: str) -> bool:
    """Tell whether the answer of a tool that reads back says what went wrong."""
    return answer.startswith("Error: ")
