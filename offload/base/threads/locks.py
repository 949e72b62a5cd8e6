"""Locks and small caches for several threads, safe across a fork.

A forked child has only the thread that forked, so a lock held by another thread would never be released.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, Self, TypeVar, overload
from weakref import WeakSet

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Renewed(Protocol):
    """An object that is renewed in a forked child."""

    def renew(self) -> None:
        """Release what threads of the parent held."""


_renewed: WeakSet[Renewed] = WeakSet()


def renew_in_child(thing: Renewed) -> None:
    """Call `thing.renew()` in each forked child."""
    _renewed.add(thing)


def _renew_all() -> None:
    for each in tuple(_renewed):
        each.renew()


# Held during an import at first use and during a call of SQLite. A fork waits for it: its child could never
# finish the import of a thread that it does not have, nor take a lock inside SQLite that such a thread holds.
NO_FORK = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
    os.register_at_fork(
        before=NO_FORK.acquire, after_in_parent=NO_FORK.release, after_in_child=NO_FORK.release
    )


class Lock:
    """A reentrant lock for short blocks without requests; it is free in a forked child."""

    def __init__(self) -> None:
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Release the lock for any holder."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class cached(Generic[T]):  # noqa: N801 # used like `property`
    """A property that is computed at its first use.

    `functools.cached_property` holds one lock for all instances meanwhile, up to Python 3.11, which a forked
    child may find locked.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        # Of threads that compute it at once, all get the first value.
        value: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return value


class Recent(Generic[K, T]):
    """An LRU cache of values whose costs, by default 1 each, are `size` in total; thread-safe."""

    def __init__(self, size: int, cost: Callable[[T], int] = lambda _: 1) -> None:
        self._room = size
        self._cost = cost
        self._values: dict[K, T] = {}
        self._lock = Lock()

    def get(self, key: K) -> T | None:
        """Return the value of `key`, or None."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def put(self, key: K, value: T) -> None:
        """Set the value of `key`, and evict the least recently used ones if there are too many."""
        with self._lock:
            self._remove(key)
            self._values[key] = value
            self._room -= self._cost(value)
            while self._room < 0:
                self._remove(next(iter(self._values)))

    def _remove(self, key: K) -> None:
        if key in self._values:
            self._room += self._cost(self._values.pop(key))
