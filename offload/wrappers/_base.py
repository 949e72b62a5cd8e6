"""The store that passes everything on: what every wrapper starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from offload.errors import OffloadError
from offload.store import Durability, OffloadStore, StoredObject, SupportsBulk


class WrapperStore:
    """A store that passes every call on to another one; a wrapper overrides what it changes.

    Constructing a wrapper gives an object with bulk verbs exactly if `inner` has them: callers ask
    `isinstance(store, SupportsBulk)`. The verbs stand in a class of their own, the bulk form:

        class BulkMyStore(MyStore, BulkWrapperStore, bulk_form_of=MyStore): ...

    A wrapper without one has no bulk verbs, so that none can go past the verbs it overrides.

    Args:
        inner: the store that is wrapped.

    Attributes:
        inner: the same.
    """

    _bulk_form: ClassVar[type[WrapperStore]]

    def __init_subclass__(cls, *, bulk_form_of: type[WrapperStore] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._bulk_form = cls
        if bulk_form_of is not None:
            bulk_form_of._bulk_form = cls  # noqa: SLF001  # our own attribute

    def __new__(cls, inner: OffloadStore, *_args: Any, **_options: Any) -> Self:
        """Return an instance of this class, or of its bulk form around a store with bulk verbs."""
        form = cls._bulk_form if isinstance(inner, SupportsBulk) else cls
        return cast("Self", object.__new__(form))

    def __init__(self, inner: OffloadStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        """The address of the wrapped store; it opens that one, without the wrapper."""
        return self.inner.url

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


class BulkWrapperStore(WrapperStore, bulk_form_of=WrapperStore):
    """A wrapper around a store with bulk verbs: passes these on too."""

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


if TYPE_CHECKING:
    _conforms: type[OffloadStore] = WrapperStore
    _moves_many: type[SupportsBulk] = BulkWrapperStore
