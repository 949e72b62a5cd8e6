"""A store that fails on demand, to show that its user loses nothing.

    store = FaultyStore(MemoryStore(), nth=3, moment="after", is_lasting=True)

Run the code under test with `nth` = 1, 2, 3, … until `store.failures` is 0: then each of its operations
has failed once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from offload.errors import ConfigError, OffloadError, StoreUnavailableError, check_choice, check_number
from offload.storage.store import OffloadStore, OneByOne, StoredObject, put_stream
from offload.storage.wrappers import WrapperStore

Verb = Literal["put", "get", "keys", "delete"]
Moment = Literal["before", "after", "torn"]


class FaultyStore(WrapperStore):
    """Forwards operations to another store and fails one of them, or one and all later ones.

    Thread-safe. It supports streams around any store, and has no bulk verbs; `FaultyBulkStore` has them.

    Args:
        inner: the wrapped store.
        nth: number of the operation that fails, from 1. A listing counts when its first entry is read.
        verb: count and fail only operations of this verb; None counts all four. A stream is a put.
        moment: "before" the operation reaches `inner`; "after" it was applied, so that only its answer is
            lost (for a listing: after its last entry); "torn", for puts only: half of the data is stored,
            which a correct store never does.
        is_lasting: whether every later operation fails too, until `heal`.
        error: type of the raised error.

    Attributes:
        operations: number of counted operations.
        failures: number of failed operations.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        inner: OffloadStore,
        *,
        nth: int = 1,
        verb: Verb | None = None,
        moment: Moment = "before",
        is_lasting: bool = False,
        error: type[OffloadError] = StoreUnavailableError,
    ) -> None:
        check_number("nth", nth, 1)
        check_choice("moment", moment, get_args(Moment))
        if verb is not None:
            check_choice("verb", verb, get_args(Verb))
        if moment == "torn" and verb not in (None, "put"):
            raise ConfigError(f'moment "torn" needs verb "put" or None, got {verb!r}')
        super().__init__(inner)
        self.operations = 0
        self.failures = 0
        self._nth: float = nth
        self._verb = "put" if moment == "torn" else verb
        self._moment = moment
        self._is_lasting = is_lasting
        self._error = error
        self._lock = threading.Lock()

    def heal(self) -> None:
        """Stop failing."""
        self._nth = math.inf

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        with self._operation("put", key) as fails:
            stored = data[: len(data) // 2] if fails and self._moment == "torn" else data
            self.inner.put(key, stored, overwrite=overwrite)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        with self._operation("put", key) as fails:
            if fails and self._moment == "torn":
                pieces, size = [b"".join(pieces)[: size // 2]], size // 2
            put_stream(self.inner, key, pieces, size)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        with self._operation("get", key):
            return self.inner.get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        with self._operation("keys", prefix):
            yield from self.inner.keys(prefix, after=after)

    def delete(self, key: str) -> None:
        with self._operation("delete", key):
            self.inner.delete(key)

    @contextmanager
    def _operation(self, verb: Verb, key: str) -> Iterator[bool]:
        """Count an operation, and raise before or after it if it fails; yield whether it does."""
        fails, number = self._count(verb)
        error = self._error(f"{self.url}: {verb} of {key!r}, operation {number}, failed as requested")
        if fails and self._moment == "before":
            raise error
        try:
            yield fails
        except OffloadError:
            # The lost answer may be an error too.
            if not fails:
                raise
        if fails:
            raise error

    def _count(self, verb: Verb) -> tuple[bool, int]:
        with self._lock:
            if self._verb not in (None, verb):
                return False, self.operations
            self.operations += 1
            fails = self.operations == self._nth or (self._is_lasting and self.operations > self._nth)
            self.failures += fails
            return fails, self.operations


class FaultyBulkStore(OneByOne, FaultyStore):
    """A `FaultyStore` with bulk verbs around any store; each item is one operation."""
