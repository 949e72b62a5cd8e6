"""The store that forwards every call: the base class of wrappers."""

from __future__ import annotations

from collections.abc import Iterator

from offload.storage.store import Durability, OffloadStore, StoredObject, identity_of, path_of, update_index


class WrapperStore:
    """A store that forwards the four verbs to the store `inner`; a wrapper overrides those that it changes.

    It has no bulk verbs and no streams, so that none can bypass a verb that a wrapper overrides: callers of
    `put_many` and its sisters reach the four verbs instead. A wrapper that keeps the inner
    store's speed defines them itself, by these functions:

        def put_many(self, items):
            return put_many(self.inner, [(key, sealed(data)) for key, data in items])
    """

    def __init__(self, inner: OffloadStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        """The address of the wrapped store; it opens that one, without the wrapper."""
        return self.inner.url

    def identity(self) -> str:
        return identity_of(self.inner)

    @property
    def is_shared(self) -> bool:
        return self.inner.is_shared

    @property
    def has_atomic_create(self) -> bool:
        return self.inner.has_atomic_create

    @property
    def durability(self) -> Durability:
        return self.inner.durability

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self.inner.put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self.inner.get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return self.inner.keys(prefix, after=after)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def path_of(self, key: str) -> str:
        return path_of(self.inner, key)

    def update_index(self) -> None:
        update_index(self.inner)
