"""What the parts of the suite share: hooks, the guard against weakening, helpers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from offload.store import OffloadStore, put_many

# In this order by code point; by path part, or by a file system's order, it would be another.
NEIGHBOURS = ("a", "a-", "a-b", "a.", "a.b", "a=", "a_", "aa", "a~", "b-/c", "b./c", "b/c", "b=/c")
DIGITS = b"0123456789"


class Suite:
    """Fixture, raw access and guard of the conformance suite."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(__package__):
            return
        parts = [vars(base) for base in cls.__mro__ if base.__module__.startswith(__package__)]
        for name, test in vars(cls).items():
            is_ours = name.startswith("test_") and any(name in part for part in parts)
            marks = getattr(test, "pytestmark", ())
            if is_ours and not any(m.name == "xfail" and m.kwargs.get("reason") for m in marks):
                raise TypeError(
                    f"{cls.__name__}.{name} redefines a test of the suite; what the backend cannot "
                    "do is marked with pytest.mark.xfail(reason=...)"
                )

    @pytest.fixture
    def store(self) -> OffloadStore:
        """Return the empty store to be tested."""
        raise NotImplementedError("give the suite a fixture `store` that returns an empty store")

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        """Return what the medium holds under `key`."""
        return store.get(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        """Make the medium hold `data` under `key`."""
        store.put(key, data)


def keys_of(store: OffloadStore, prefix: str = "", *, after: str = "") -> list[str]:
    """Return the keys of a listing."""
    return [found.key for found in store.keys(prefix, after=after)]


def put_all(store: OffloadStore, items: Iterable[tuple[str, bytes]]) -> None:
    """Put every item."""
    assert not any(put_many(store, list(items)))
