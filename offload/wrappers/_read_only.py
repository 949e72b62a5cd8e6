"""A store that nobody changes through it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload.errors import InvalidKeyError, OffloadError, StorePermissionError
from offload.layout import check_key
from offload.wrappers._base import BulkWrapperStore, StreamWrapperStore, WrapperStore


class ReadOnlyStore(WrapperStore):
    """Reads and listings pass; every put and delete raises `StorePermissionError`."""

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:  # noqa: ARG002  # the contract's arguments
        """Raise `StorePermissionError`."""
        raise self._refusal(key)

    def delete(self, key: str) -> None:
        """Raise `StorePermissionError`, also for a key that is not there."""
        raise self._refusal(key)

    def _refusal(self, key: str) -> StorePermissionError:
        check_key(key)
        return StorePermissionError(
            f"{self.url}: {key!r} cannot be changed through a ReadOnlyStore; write to the store that it wraps"
        )


class BulkReadOnlyStore(ReadOnlyStore, BulkWrapperStore, extends=ReadOnlyStore):
    """A read-only store around one with bulk verbs."""

    def put_many(self, items: Sequence[tuple[str, bytes]]) -> list[OffloadError | None]:
        """Return the error of `put` for each item."""
        return [self._error(key) for key, _ in items]

    def delete_many(self, keys: Iterable[str]) -> None:
        """Raise the error of `delete` for the first key."""
        for key in keys:
            self.delete(key)

    def _error(self, key: str) -> OffloadError:
        try:
            return self._refusal(key)
        except InvalidKeyError as error:
            return error


class StreamReadOnlyStore(ReadOnlyStore, StreamWrapperStore, extends=ReadOnlyStore):
    """A read-only store around one with streams."""

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:  # noqa: ARG002  # the contract's arguments
        """Raise `StorePermissionError`; no piece is asked for."""
        raise self._refusal(key)
