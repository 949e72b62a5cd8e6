"""A store that refuses every change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from offload.errors import OffloadError, StorePermissionError
from offload.storage.layout import check_key
from offload.storage.store import OneByOne, folders, get_many
from offload.storage.wrappers._base import WrapperStore


class ReadOnlyStore(OneByOne, WrapperStore):
    """Forwards reads and listings; every put and delete raises `StorePermissionError`."""

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:  # noqa: ARG002  # the contract's arguments
        raise self._refusal(key)

    def delete(self, key: str) -> None:
        raise self._refusal(key)

    def folders(self, prefix: str = "") -> Iterator[str]:
        return folders(self.inner, prefix)

    def get_many(self, keys: Sequence[str]) -> Iterable[bytes | OffloadError]:
        return get_many(self.inner, keys)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:  # noqa: ARG002  # the contract's arguments
        raise self._refusal(key)

    def update_index(self) -> None:
        """Do nothing: nothing was changed through this store."""

    def _refusal(self, key: str) -> StorePermissionError:
        check_key(key)
        return StorePermissionError(
            f"{self.url}: {key!r} cannot be changed through a ReadOnlyStore; write to the store that it wraps"
        )
