"""A store that retries while the wrapped store is unavailable."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from offload import errors
from offload.storage import store
from offload.storage.wrappers._base import WrapperStore

T = TypeVar("T")
R = TypeVar("R")

# A created object is compared in blocks of this size.
_COMPARED_BYTES = 4 * 1024**2


class RetryingStore(WrapperStore):
    """Retries a call that raised `StoreUnavailableError`; every other error is raised at once.

    The pause before retry n is drawn evenly from 0 to `min(max_pause, first_pause * 2**n)`, n from 0
    ("full jitter"), so that clients that failed together do not retry together. A call has one deadline:
    no retry begins after it, and the last error is raised. A running attempt is not interrupted. A
    listing resumes after its last key, with a new deadline for each key.

    A create whose answer was lost may have succeeded, and its retry then meets its own object: on
    `ExistsError` after a retry the object is compared, and equal bytes are a success, also those of another
    writer. For a stream, each attempt and the comparison iterate the pieces from the first: pass a list or
    another object that can be iterated again, not a generator.

    Do not wrap an `s3://` store: it has its own retries, and layers of retries multiply.

    Args:
        inner: the store that is wrapped.
        deadline: seconds after the start of a call in which a retry may begin.
        first_pause: the longest pause before the first retry, in seconds.
        max_pause: the longest pause before any retry, in seconds.

    Raises:
        ConfigError: a number of seconds is negative, or no number.
    """

    def __init__(
        self,
        inner: store.OffloadStore,
        *,
        deadline: float = 30.0,
        first_pause: float = 0.1,
        max_pause: float = 5.0,
    ) -> None:
        super().__init__(inner)
        for name, seconds in (("deadline", deadline), ("first_pause", first_pause), ("max_pause", max_pause)):
            errors.check_number(name, seconds, 0, is_whole=False)
        self._call = partial(RetryState, deadline, first_pause, max_pause)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        with self._creating(key, [data], len(data)) as call:
            call.run(partial(self.inner.put, key, data, overwrite=overwrite))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self._call().run(partial(self.inner.get, key, start=start, end=end))

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[store.StoredObject]:
        call = self._call()
        while True:
            try:
                for entry in self.inner.keys(prefix, after=after):
                    after = entry.key
                    yield entry
                    call = self._call()
            except errors.StoreUnavailableError:
                if not call.waits():
                    raise
            else:
                return

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the folders of `prefix`, all listed before the first; a listing that fails begins again."""
        yield from self._call().run(lambda: list(store.folders(self.inner, prefix)))

    def delete(self, key: str) -> None:
        self._call().run(partial(self.inner.delete, key))

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[errors.OffloadError | None]:
        items = list(items)
        call = self._call()
        results, retried = _each(call, partial(store.put_many, self.inner, overwrite=overwrite), items)
        for n in retried:
            if isinstance(results[n], errors.ExistsError):
                key, data = items[n]
                found = errors.result_or_error(self._has, call, key, [data], len(data))
                results[n] = None if found is True else found or results[n]
        return results

    def get_many(self, keys: Sequence[str]) -> Iterable[bytes | errors.OffloadError]:
        if isinstance(self.inner, store.SupportsBulk):
            return _each(self._call(), lambda some: list(store.get_many(self.inner, some)), keys)[0]
        return (errors.result_or_error(self.get, key) for key in keys)

    def delete_many(self, keys: Iterable[str]) -> None:
        self._call().run(partial(store.delete_many, self.inner, list(keys)))

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        with self._creating(key, pieces, size) as call:
            call.run(partial(store.put_stream, self.inner, key, pieces, size))

    def update_index(self) -> None:
        self._call().run(partial(store.update_index, self.inner))

    @contextmanager
    def _creating(self, key: str, pieces: Iterable[bytes], size: int) -> Iterator[RetryState]:
        """Ignore an `ExistsError` after a retry if the object has these bytes."""
        call = self._call()
        try:
            yield call
        except errors.ExistsError:
            if not call.failures or not self._has(call, key, pieces, size):
                raise

    def _has(self, call: RetryState, key: str, pieces: Iterable[bytes], size: int) -> bool:
        """Return whether the object has these bytes, reading a block at a time."""
        at = 0
        try:
            for block in store.blocks_of(pieces, _COMPARED_BYTES):
                end = at + len(block)
                if call.run(partial(self.inner.get, key, start=at, end=end)) != block:
                    return False
                at = end
            return at == size and not call.run(partial(self.inner.get, key, start=size, end=size + 1))
        except errors.NotFoundError:
            return False  # Somebody deleted the object meanwhile.


def _each(
    call: RetryState, verb: Callable[[Sequence[Any]], list[R]], items: Sequence[Any]
) -> tuple[list[R], set[int]]:
    """Return the verb's result for each item, and the positions of the retried items."""
    results = verb(items)
    retried = set[int]()
    while failed := [
        n for n, result in enumerate(results) if isinstance(result, errors.StoreUnavailableError)
    ]:
        if not call.waits():
            break
        retried.update(failed)
        for n, result in zip(failed, verb([items[n] for n in failed]), strict=True):
            results[n] = result
    return results, retried


@dataclass
class RetryState:
    """The failures of one call, and its deadline."""

    deadline: float
    longest_pause: float
    max_pause: float
    failures: int = 0

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.deadline

    def run(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`, retrying until the store answers or the deadline has passed."""
        while True:
            try:
                return attempt()
            except errors.StoreUnavailableError:
                if not self.waits():
                    raise

    def waits(self) -> bool:
        """Count a failure and wait before the next attempt; return False if that would pass the deadline."""
        self.failures += 1
        pause = random.random() * min(self.longest_pause, self.max_pause)  # noqa: S311  # no secret
        self.longest_pause = min(self.longest_pause * 2, self.max_pause)
        if time.monotonic() + pause >= self.until:
            return False
        time.sleep(pause)
        return True
