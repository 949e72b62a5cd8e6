"""Connections that the stores of one process share."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from offload.base.threads.locks import Lock, Recent

T = TypeVar("T")

_UNUSED = 8


class Shared(Generic[T]):
    """Connections by key, each for the process that made it.

    One that no store uses any more is closed after eight others were opened.
    """

    def __init__(self) -> None:
        self._opened: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._recent: Recent[Hashable, T] = Recent(_UNUSED)
        self._lock = Lock()

    def get(self, key: Hashable, connect: Callable[[], T]) -> T:
        """Return the connection of `key`; `connect` makes the first one."""
        # Connections do not survive a fork.
        key = os.getpid(), key
        connection = self._opened.get(key)
        if connection is None:
            # Concurrent callers may both connect; they use the first one.
            new = connect()
            with self._lock:
                connection = self._opened.setdefault(key, new)
        self._recent.put(key, connection)
        return connection

    def forget(self, connection: T) -> None:
        """Have the next caller connect again."""
        with self._lock:
            for key in [key for key, each in self._opened.items() if each is connection]:
                del self._opened[key]


def key_of(options: object) -> Hashable:
    """Return a key that is equal for equal options; options that are not plain values equal nothing."""
    if isinstance(options, Mapping):
        return frozenset((name, key_of(value)) for name, value in options.items())
    if isinstance(options, list | tuple):
        return tuple(map(key_of, options))
    if options is None or isinstance(options, str | bytes | int | float):
        return type(options), options
    return object()
