"""A store that asks again while the one that it wraps does not answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from offload.errors import ConfigError, ExistsError, NotFoundError, OffloadError, StoreUnavailableError
from offload.store import OffloadStore, StoredObject, delete_many, get_many, put_many, put_stream
from offload.wrappers._base import WrapperStore
from offload.wrappers._chunks import blocks_of

T = TypeVar("T")
R = TypeVar("R")

# How much of a streamed object is read back at once to compare it.
_COMPARED_BYTES = 4 * 1024**2


class RetryingStore(WrapperStore):
    """Repeats what raised `StoreUnavailableError`; every other error passes at once.

    The pause before retry n is drawn evenly from 0 to `min(max_pause, first_pause * 2**n)`, n from 0
    ("full jitter"), so that clients that failed together do not come back together. A call has one deadline:
    no retry begins after it, and the last error is raised. A try that is under way is not cut short. A
    listing goes on after the last key that it gave; its deadline starts anew with each key.

    A create whose answer was lost may have been done, and its retry then meets its own object: on
    `ExistsError` after a retry the object is read back, and the same bytes are a success. So are the
    same bytes of another writer, which nobody can tell apart. Of a stream every try, and the reading back,
    asks for the pieces anew: give a list or an object that can be iterated again, not a generator.

    Do not wrap an `s3://` store: it has retries of its own, and layers of retries multiply.

    Args:
        inner: the store that is wrapped.
        deadline: seconds from the start of a call within which a retry may begin.
        first_pause: the longest pause before the first retry, in seconds.
        max_pause: the longest pause before any retry, in seconds.
        clock: returns seconds that never run back.
        sleep: waits for the seconds that it is given.
        jitter: returns the next random number, 0 <= x < 1.

    Raises:
        ConfigError: a number of seconds is negative.
    """

    def __init__(
        self,
        inner: OffloadStore,
        *,
        deadline: float = 30.0,
        first_pause: float = 0.1,
        max_pause: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        if not all(seconds >= 0 for seconds in (deadline, first_pause, max_pause)):
            raise ConfigError("deadline, first_pause and max_pause are seconds and not negative")
        self._call = partial(RetryState, deadline, (first_pause, max_pause), clock, sleep, jitter)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, with retries; see `OffloadStore.put`."""
        call = self._call()
        try:
            call.run(partial(self.inner.put, key, data, overwrite=overwrite))
        except ExistsError:
            if not call.failures or not self._holds(call, key, data):
                raise

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them, with retries; see `OffloadStore.get`."""
        return self._call().run(partial(self.inner.get, key, start=start, end=end))

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order, with retries; see `OffloadStore.keys`."""
        call = self._call()
        while True:
            try:
                for found in self.inner.keys(prefix, after=after):
                    after = found.key
                    yield found
                    call = self._call()
            except StoreUnavailableError:
                if not call.waits():
                    raise
            else:
                return

    def delete(self, key: str) -> None:
        """Remove `key`, with retries; see `OffloadStore.delete`."""
        self._call().run(partial(self.inner.delete, key))

    def put_many(
        self, items: Sequence[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[OffloadError | None]:
        """Store many objects, with retries; see `SupportsBulk.put_many`."""
        call = self._call()
        results, retried = _each(call, partial(put_many, self.inner, overwrite=overwrite), items)
        for place in retried:
            results[place] = self._settled(call, *items[place], results[place])
        return results

    def get_many(self, keys: Sequence[str]) -> list[bytes | OffloadError]:
        """Return many objects, with retries; see `SupportsBulk.get_many`."""
        return _each(self._call(), lambda some: list(get_many(self.inner, some)), keys)[0]

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove many keys, with retries; see `SupportsBulk.delete_many`."""
        self._call().run(partial(delete_many, self.inner, list(keys)))

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Create `key` piece by piece, with retries; see `SupportsStreams.put_stream`."""
        call = self._call()
        try:
            call.run(partial(put_stream, self.inner, key, pieces, size))
        except ExistsError:
            if not call.failures or not self._holds_stream(call, key, pieces, size):
                raise

    def _holds(self, call: RetryState, key: str, data: bytes) -> bool:
        try:
            return call.run(partial(self.inner.get, key)) == data
        except NotFoundError:
            return False  # Whoever took the key, it was deleted meanwhile.

    def _settled(
        self, call: RetryState, key: str, data: bytes, result: OffloadError | None
    ) -> OffloadError | None:
        """Return the result of a retried create: None if the key is taken by `data` itself."""
        try:
            is_ours = isinstance(result, ExistsError) and self._holds(call, key, data)
        except OffloadError as error:
            return error
        return None if is_ours else result

    def _holds_stream(self, call: RetryState, key: str, pieces: Iterable[bytes], size: int) -> bool:
        """Return whether the object has these bytes, reading a block at a time."""
        at = 0
        try:
            for block in blocks_of(pieces, _COMPARED_BYTES):
                end = at + len(block)
                if call.run(partial(self.inner.get, key, start=at, end=end)) != block:
                    return False
                at = end
            return at == size and not call.run(partial(self.inner.get, key, start=size, end=size + 1))
        except NotFoundError:
            return False  # The same.


def _each(
    call: RetryState, verb: Callable[[Sequence[Any]], list[R]], items: Sequence[Any]
) -> tuple[list[R], set[int]]:
    """Return the verb's result for each item, and the places of those that were asked for again."""
    results = verb(items)
    retried = set[int]()
    while places := [n for n, result in enumerate(results) if isinstance(result, StoreUnavailableError)]:
        if not call.waits():
            break
        retried.update(places)
        for place, result in zip(places, verb([items[n] for n in places]), strict=True):
            results[place] = result
    return results, retried


class RetryState:
    """One call's retries: how often it failed, and when it must end."""

    def __init__(
        self,
        deadline: float,
        pauses: tuple[float, float],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        jitter: Callable[[], float],
    ) -> None:
        self.failures = 0
        self._until = clock() + deadline
        self._longest, self._max_pause = pauses
        self._clock, self._sleep, self._jitter = clock, sleep, jitter

    def run(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, trying until it is available or the deadline comes."""
        while True:
            try:
                return attempt()
            except StoreUnavailableError:
                if not self.waits():
                    raise

    def waits(self) -> bool:
        """Count a failure and wait before the next try; False if that would pass the deadline."""
        self.failures += 1
        pause = self._jitter() * min(self._longest, self._max_pause)
        self._longest = min(self._longest * 2, self._max_pause)
        if self._clock() + pause >= self._until:
            return False
        self._sleep(pause)
        return True
