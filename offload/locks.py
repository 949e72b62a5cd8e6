"""What several threads may share, also across a fork of the process.

A forked child has the thread that forked alone: a lock that another one held would be held for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Renewed(Protocol):
    """What a forked child makes anew."""

    def renew(self) -> None:
        """Be held by no thread that is not there."""
        ...


_renewed: WeakSet[Renewed] = WeakSet()


def renew_in_child(thing: Renewed) -> None:
    """Have `thing` made anew in each forked child."""
    _renewed.add(thing)


def _renew_all() -> None:
    for each in tuple(_renewed):
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Lock:
    """A lock that its holder may take again, for a short while and around no request.

    A forked child finds it free.
    """

    def __init__(self) -> None:
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Be free, whoever held it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class cached(Generic[T]):  # noqa: N801 # stands where `property` does
    """A property that is found out at its first use and kept.

    That of functools holds one lock for all instances meanwhile, up to Python 3.11.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value = self._function(instance)
        instance.__dict__[self._name] = value
        return value


class Recent(Generic[K, T]):
    """The values that were used last, by key; safe in several threads.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[K, T] = {}
        self._lock = Lock()

    def get(self, key: K) -> T | None:
        """Return the value of `key`, None if there is none."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def put(self, key: K, value: T) -> None:
        """Keep `value`, and let go what was not used for longest."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self._size:
                del self._values[next(iter(self._values))]
