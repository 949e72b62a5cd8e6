"""The store that passes everything on: what every wrapper starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from offload.errors import OffloadError
from offload.store import (
    Durability,
    OffloadStore,
    StoredObject,
    SupportsBulk,
    SupportsStreams,
    identity_of,
)


class WrapperStore:
    """A store that passes every call on to another one; a wrapper overrides what it changes.

    Constructing a wrapper gives an object with bulk verbs exactly if `inner` has them, and with streams
    exactly if `inner` has them: callers ask `isinstance(store, SupportsBulk)`. What a wrapper does
    around such a store stands in classes of their own, its extensions:

        class BulkMyStore(MyStore, BulkWrapperStore, extends=MyStore): ...
        class StreamMyStore(MyStore, StreamWrapperStore, extends=MyStore): ...

    A wrapper without an extension has not these verbs, so that none can go past the verbs it overrides.

    Args:
        inner: the store that is wrapped.

    Attributes:
        inner: the same.
    """

    _extensions: ClassVar[list[type[WrapperStore]]] = []
    # What `inner` must have for an extension to apply.
    _needs: ClassVar[type] = OffloadStore

    def __init_subclass__(cls, *, extends: type[WrapperStore] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._extensions = []
        if extends is not None:
            extends._extensions.append(cls)  # noqa: SLF001  # our own attribute

    def __new__(cls, inner: OffloadStore, *_args: Any, **_options: Any) -> Self:
        """Return an instance of this class with every extension that `inner` allows."""
        fitting = (e for e in cls._extensions if isinstance(inner, e._needs))  # noqa: SLF001  # the same
        return cast("Self", object.__new__(_combined((*fitting, cls))))

    def __init__(self, inner: OffloadStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        """The address of the wrapped store; it opens that one, without the wrapper."""
        return self.inner.url

    def identity(self) -> str:
        """Return which store the wrapped one is; see `SupportsIdentity.identity`."""
        return identity_of(self.inner)

    @property
    def is_shared(self) -> bool:
        """Whether the wrapped store is shared."""
        return self.inner.is_shared

    @property
    def has_atomic_create(self) -> bool:
        """Whether the wrapped store's creates are atomic."""
        return self.inner.has_atomic_create

    @property
    def durability(self) -> Durability:
        """What an object of the wrapped store survives."""
        return self.inner.durability

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`; see `OffloadStore.put`."""
        self.inner.put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them; see `OffloadStore.get`."""
        return self.inner.get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order; see `OffloadStore.keys`."""
        return self.inner.keys(prefix, after=after)

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        self.inner.delete(key)


class BulkWrapperStore(WrapperStore, extends=WrapperStore):
    """A wrapper around a store with bulk verbs: passes these on too."""

    _needs = SupportsBulk

    @property
    def bulk(self) -> SupportsBulk:
        """The wrapped store, as one with bulk verbs."""
        return cast("SupportsBulk", self.inner)

    def put_many(self, items: Sequence[tuple[str, bytes]]) -> list[OffloadError | None]:
        """Create many objects; see `SupportsBulk.put_many`."""
        return self.bulk.put_many(items)

    def get_many(self, keys: Sequence[str]) -> list[bytes | OffloadError]:
        """Return many objects; see `SupportsBulk.get_many`."""
        return self.bulk.get_many(keys)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove many keys; see `SupportsBulk.delete_many`."""
        self.bulk.delete_many(keys)


class StreamWrapperStore(WrapperStore, extends=WrapperStore):
    """A wrapper around a store with streams: passes these on too."""

    _needs = SupportsStreams

    @property
    def streams(self) -> SupportsStreams:
        """The wrapped store, as one with streams."""
        return cast("SupportsStreams", self.inner)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Create `key` piece by piece; see `SupportsStreams.put_stream`."""
        self.streams.put_stream(key, pieces, size)


@cache
def _combined(classes: tuple[type[WrapperStore], ...]) -> type[WrapperStore]:
    """Return the class that is all of `classes`, under the name of the last one."""
    *extensions, wrapper = classes
    facts = {"__doc__": wrapper.__doc__, "__module__": wrapper.__module__}
    return type(wrapper.__name__, classes, facts) if extensions else wrapper


if TYPE_CHECKING:
    _conforms: type[OffloadStore] = WrapperStore
    _moves_many: type[SupportsBulk] = BulkWrapperStore
    _streams: type[SupportsStreams] = StreamWrapperStore
