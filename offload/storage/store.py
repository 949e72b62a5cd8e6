"""The store contract, for backends and callers.

A store holds bytes under keys chosen by the caller. Every sentence of the docstrings below is one test
of `offload.testing.StoreConformance`; a backend must pass the suite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard, TypeVar, runtime_checkable

from offload.base.patterns import lazy_pattern
from offload.errors import ConfigError, EncryptionError, ExistsError, OffloadError, result_or_error

T = TypeVar("T")
Durability = Literal["power", "process", "memory", "unknown"]

# The separator in fsspec's chains of file systems, `simplecache::ftp://host`.
_LINK = lazy_pattern(r"::(?=(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://)")
# Signatures and tokens; a folder name may contain `?` or `#`, but rarely with a value.
_QUERY = lazy_pattern(r"\?.*|#.*=.*", re.DOTALL)
_HIDDEN = "(hidden)@"
# The variable with the key of an encrypted store, for commands and `Offloader.from_config()`.
KEY_VARIABLE = "OFFLOAD_KEY"
# The last bytes of an object that `EncryptingStore` wrote: so many, which begin with these.
SEALED_FOOTER, SEALED_MAGIC = 56, b"OFS1"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One entry of a listing.

    Attributes:
        key: the key, relative to the store's root.
        size: the object's stored size in bytes.
        modified: the time of the write, in seconds since the epoch by the store's own clock.
    """

    key: str
    size: int
    modified: float


@runtime_checkable
class OffloadStore(Protocol):
    """Bytes under keys: four verbs, synchronous, safe to call from several threads.

    Keys follow `offload.check_key`; any other key raises `InvalidKeyError` from every verb and
    touches nothing. A failure of the medium raises a `StoreError` and changes nothing in the store.
    Constructing a store performs no input or output.
    """

    @property
    def url(self) -> str:
        """The address that opens this store, without credentials."""

    @property
    def is_shared(self) -> bool:
        """Whether another machine that opens `url` sees the same objects."""

    @property
    def has_atomic_create(self) -> bool:
        """Whether a create-only `put` has exactly one winner among concurrent writers."""

    @property
    def durability(self) -> Durability:
        """The failure that an object survives after its put has returned.

        "power": a power cut; "process": the death of the process, but maybe not a power cut; "memory":
        neither; "unknown": this depends on the medium.
        """

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, whole and durable when the call returns.

        A reader sees the old object, the new one or none, never a part of one. Without `overwrite` a key
        that is taken raises `ExistsError` and keeps its bytes; with it the object is replaced. A failed
        put creates no object under `key`. Empty data is an object like any other.
        """

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` from `start` up to, not including, `end`.

        `start` < 0 counts from the end: `start=-n` returns the last n bytes, the whole object if it is
        shorter, and takes no `end`. A range that reaches past the end is cut there; one that starts past
        it is empty. An absent key raises `NotFoundError`.
        """

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose key starts with `prefix` and sorts after `after`, in key order.

        `prefix` is compared as text, not by path part; the empty prefix lists the store. Keys sort by
        code point. The listing is lazy; a `put` that returned before the listing began is in it. A
        store that was never written to lists nothing.
        """

    def delete(self, key: str) -> None:
        """Delete `key`. An absent key is success."""


@runtime_checkable
class SupportsBulk(Protocol):
    """Moves many objects concurrently in one call, which makes a remote store fast."""

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[OffloadError | None]:
        """Store every `(key, data)` as `put` would; no key occurs twice.

        `items` may be an iterator that prepares each item, and the first ones may be stored while it does; an
        error that it raises is passed on.

        Returns one entry per item in the same order: None if it is stored, otherwise the error that
        `put` would have raised. One item's failure does not stop the others.
        """

    def get_many(self, keys: Sequence[str]) -> Iterable[bytes | OffloadError]:
        """Return each object's bytes, or the error that `get` would have raised, in the same order.

        A wrapper may fetch an object when the result is iterated.
        """

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete every key as `delete` would."""


@runtime_checkable
class SupportsFolders(Protocol):
    """Lists folders without their objects, so that a store of many sessions names them in few requests."""

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the name of each folder of `prefix`, which is empty or ends in a slash, each once.

        A folder is the part of keys between `prefix` and their next slash. Names come in the order of their
        keys; the listing is lazy.
        """


@runtime_checkable
class SupportsStreams(Protocol):
    """Writes an object piece by piece, so that a large one takes constant memory."""

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Create `key` from `pieces`, of `size` bytes in all, as `put` without `overwrite` would.

        The object appears whole or not at all, and memory holds a few pieces at a time. `pieces` may be
        iterated again for another attempt. Pieces of another total size raise `ConfigError` and store
        nothing; an error that `pieces` raise is passed on, and nothing is stored.
        """


@runtime_checkable
class SupportsIdentity(Protocol):
    """Identifies a store whose address is ambiguous: one bucket name at two services."""

    def identity(self) -> str:
        """Return a text that is equal for stores of the same objects and contains no credential.

        It is equal in every process, unless the objects exist in this process only.
        """


@runtime_checkable
class SupportsIndex(Protocol):
    """Keeps files that list its records for people and agents, such as `index.json`.

    They are derived: the records alone say what is stored.
    """

    def update_index(self) -> None:
        """Make the files match the records, after writes and deletions; it is cheap if there were none.

        `Offloader`, `collect`, `delete` and `copy_session` call it once at the end of each call that may
        have changed records. After a `StoreError` the next call tries again; no record depends on it.
        """


@runtime_checkable
class SupportsTimes(Protocol):
    """Changes the time of an object, so that a listing shows a copy with the time of its original."""

    def set_time(self, key: str, modified: float) -> None:
        """Have listings show `modified`, in seconds since the epoch, for `key`; an absent key is success."""


@runtime_checkable
class SupportsPaths(Protocol):
    """Shows records as files of its own layout, such as documents for an agent's Read tool."""

    def path_of(self, key: str) -> str:
        """Return the path, relative to `url`, of the file that shows the object at `key`, or `key` itself."""


class OneByOne:
    """Bulk verbs of a store by its four verbs, for one object after another; a base class."""

    def put_many(
        self: OffloadStore, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[OffloadError | None]:
        """Store each object; see `SupportsBulk.put_many`."""
        return [result_or_error(self.put, key, data, overwrite=overwrite) for key, data in items]

    def get_many(self: OffloadStore, keys: Sequence[str]) -> Iterable[bytes | OffloadError]:
        """Return each object; see `SupportsBulk.get_many`."""
        return [result_or_error(self.get, key) for key in keys]

    def delete_many(self: OffloadStore, keys: Iterable[str]) -> None:
        """Delete each key; the first failure ends it. See `SupportsBulk.delete_many`."""
        for key in keys:
            self.delete(key)


def identity_of(store: OffloadStore) -> str:
    """Return the identity of a store, or its address if it has none: the name for data kept about it."""
    return store.identity() if isinstance(store, SupportsIdentity) else store.url


# Python remembers the answer of `issubclass`; `isinstance` compares all methods of a protocol at each call.
def _has_bulk(store: OffloadStore) -> TypeGuard[SupportsBulk]:
    return issubclass(type(store), SupportsBulk)


def put_many(
    store: OffloadStore, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
) -> list[OffloadError | None]:
    """Store many objects as `SupportsBulk.put_many` does, one by one if the store has no bulk verbs."""
    if _has_bulk(store):
        return store.put_many(items, overwrite=overwrite)
    return OneByOne.put_many(store, items, overwrite=overwrite)


def get_many(store: OffloadStore, keys: Iterable[str]) -> Iterator[bytes | OffloadError]:
    """Yield each object or the error of its `get`, in order.

    A store with bulk verbs fetches many at once, any other store each one when the caller needs it.
    """
    if _has_bulk(store):
        return iter(store.get_many(list(keys)))
    return (result_or_error(store.get, key) for key in keys)


def delete_many(store: OffloadStore, keys: Iterable[str]) -> None:
    """Delete many objects as `SupportsBulk.delete_many` does, one by one if the store has no bulk verbs."""
    if _has_bulk(store):
        store.delete_many(keys)
    else:
        OneByOne.delete_many(store, keys)


def create(store: OffloadStore, key: str, data: bytes = b"") -> bool:
    """Store an object unless its key is taken; return whether it is new."""
    try:
        store.put(key, data)
    except ExistsError:
        return False
    return True


def has(store: OffloadStore, key: str) -> bool:
    """Return whether there is an object under `key`, by a listing."""
    return any(stored.key == key for stored in store.keys(key))


def folders(store: OffloadStore, prefix: str = "") -> Iterator[str]:
    """Yield folders as `SupportsFolders.folders` does, by a listing each if the store has no such verb."""
    if isinstance(store, SupportsFolders):
        yield from store.folders(prefix)
        return
    after = ""
    while (first := next(iter(store.keys(prefix, after=after)), None)) is not None:
        name, slash, _ = first.key.removeprefix(prefix).partition("/")
        if slash:
            yield name
        # "0" follows "/": this is the next key after all keys of this folder.
        after = f"{prefix}{name}0" if slash else first.key


def put_stream(store: OffloadStore, key: str, pieces: Iterable[bytes], size: int) -> None:
    """Create `key` as `SupportsStreams.put_stream` does, from memory if the store takes no streams."""
    if isinstance(store, SupportsStreams):
        store.put_stream(key, pieces, size)
    else:
        store.put(key, b"".join(sized(pieces, size)))


def path_of(store: OffloadStore, key: str) -> str:
    """Return the path below the store's address of the file that shows the object at `key`."""
    return store.path_of(key) if isinstance(store, SupportsPaths) else key


def update_index(store: OffloadStore) -> None:
    """Update the files that list the records of a store, if it keeps any; see `SupportsIndex`."""
    if isinstance(store, SupportsIndex):
        store.update_index()


def sized(pieces: Iterable[bytes], size: int) -> Iterator[memoryview]:
    """Yield `pieces`, and raise `ConfigError` as soon as their total is known not to be `size`."""
    total = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        total += len(view)
        if total > size:
            raise ConfigError(f"size must be the total of all pieces, got {size} bytes for {total} or more")
        yield view
    if total < size:
        raise ConfigError(f"size must be the total of all pieces, got {size} bytes for {total}")


def blocks_of(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Yield the bytes of `pieces` in blocks of `size` bytes, the last one shorter; no bytes, no block."""
    buffer = bytearray()
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while rest:
            missing = size - len(buffer)
            buffer += rest[:missing]
            rest = rest[missing:]
            if len(buffer) == size:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)


def in_groups(items: Iterable[T], size_of: Callable[[T], int], *, most: int, count: int) -> Iterator[list[T]]:
    """Yield `items` in groups of at most `count` items and `most` in size; a larger item is alone."""
    group: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (len(group) == count or total + size > most):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def without_secrets(url: str, hidden: str = "") -> str:
    """Return `url` for display: without user, password or token, and without its query.

    If a password has no clear end, too much is hidden.

    Args:
        url: a URL or a chain of them; a path is returned unchanged.
        hidden: text in place of a user.
    """
    return "::".join(_link_without_secrets(link, hidden) for link in _LINK.split(url))


def _link_without_secrets(link: str, hidden: str) -> str:
    scheme, mark, rest = link.partition("://")
    if not mark:
        return link
    authority = rest.partition("/")[0]
    # After a colon there may be a password, and it may contain the characters that end an authority.
    place = rest if ":" in authority else authority
    user, at, _ = place.rpartition("@")
    visible = rest[len(user + at) :]
    if at:
        visible = (hidden if len(user) < len(authority) else _HIDDEN) + visible
    return scheme + mark + _QUERY.sub("", visible, count=1)


def check_range(start: int, end: int | None) -> None:
    """Raise `ConfigError` for a byte range that `OffloadStore.get` does not accept."""
    if end is not None and (start < 0 or end < 0):
        raise ConfigError(f"range must be start=-n alone or 0 <= start <= end, got start={start}, end={end}")


def is_sealed(end: bytes) -> bool:
    """Return whether an object whose last bytes are `end`, at least 56 of them, is encrypted."""
    return end[-SEALED_FOOTER:].startswith(SEALED_MAGIC)


def check_plain(end: bytes, key: str = "") -> None:
    """Raise `EncryptionError` if an object that cannot be read ends as encrypted ones do; see `is_sealed`.

    The error begins with the `key` of the object, if it is given.
    """
    if is_sealed(end):
        place = f"{key}: " if key else ""
        raise EncryptionError(
            f"{place}it is encrypted; open the store as EncryptingStore(store, key), or set "
            f"{KEY_VARIABLE} for commands and Offloader.from_config()"
        )
