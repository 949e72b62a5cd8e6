"""One function for each of many items of a store, on any executor of `concurrent.futures`.

Items are handed out a few at a time and results come in the order of the items, so memory does not grow with
the store, and the results are those of one process. An item whose worker fails costs that item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec

from offload.errors import ConfigError, OffloadError, StoreUnavailableError, result_or_error, unexpected
from offload.records.index.objects import SessionObjects, list_session, list_sessions, session_parts
from offload.storage.registry import open_store, open_with_key, with_layout
from offload.storage.store import KEY_VARIABLE, OffloadStore, identity_of
from offload.storage.wrappers import encryption_of

I = TypeVar("I")  # noqa: E741  # an item
T = TypeVar("T")

# Threads for a store that is not on this machine: they wait for it most of the time.
THREADS = 16
# Items that are with an executor at once. It must keep every worker busy, and its results are held in memory.
_IN_FLIGHT = 128


@dataclass(frozen=True)
class StoreAddress:
    """The address by which a worker of another process opens a store.

    Attributes:
        url: that of the store.
        options: the storage options as JSON. A worker has the credentials of its own environment unless the
            caller gives others here.
        key_id: the id of the store's encryption key, which a worker has in its own environment; None for a
            store in clear.
    """

    url: str
    options: bytes = field(repr=False)
    key_id: str | None = None


def run_each(
    work: Callable[..., T],
    items: Iterable[I],
    stores: Sequence[OffloadStore],
    *,
    executor: Executor | None = None,
    storage_options: Sequence[Mapping[str, Any] | None] = (),
) -> Generator[tuple[I, T | OffloadError], None, None]:
    """Yield each item with the result of `work(*stores, item)`, or with its error, in order.

    Args:
        work: a function of a module, or a `partial` of one; with workers in other processes, arguments and
            results are pickled.
        items: the items; they are taken as workers become free.
        stores: the stores. Workers in other processes open them by their URLs.
        executor: runs the work. By default threads do if a store is on another machine, else this thread.
        storage_options: those of each store, for workers in other processes.

    Raises:
        ConfigError: a worker in another process could not open a store by its URL.
    """
    with _running(executor, stores) as pool:
        if pool is None or isinstance(pool, ThreadPoolExecutor):
            call: Callable[[I], T | OffloadError] = partial(result_or_error, work, *stores)
        else:
            call = partial(_call_at, work, addresses_of(stores, storage_options))
        if pool is None:
            yield from ((item, call(item)) for item in items)
        else:
            yield from _spread(pool, call, items)


def each_session(
    work: Callable[[OffloadStore, SessionObjects], T],
    store: OffloadStore,
    executor: Executor | None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, T | OffloadError]]:
    """Yield the key part of each session with the result of `work(store, objects)`, or with its error.

    This thread works from one listing of the store, and an error ends it. The workers of an executor list one
    session each, which is more requests in less time. See `run_each`.
    """
    if executor is None:
        for objects in list_sessions(store):
            yield objects.part, work(store, objects)
    else:
        on_part, parts = partial(_on_part, work), session_parts(store)
        yield from run_each(on_part, parts, [store], executor=executor, storage_options=[storage_options])


def _on_part(work: Callable[[OffloadStore, SessionObjects], T], store: OffloadStore, part: str) -> T:
    return work(store, list_session(store, part))


def _spread(
    pool: Executor, call: Callable[[I], T | OffloadError], items: Iterable[I]
) -> Iterator[tuple[I, T | OffloadError]]:
    waiting: deque[tuple[I, Future[T | OffloadError] | OffloadError]] = deque()
    try:
        for item in items:
            waiting.append((item, _submit(pool, call, item)))
            if len(waiting) >= _IN_FLIGHT:
                yield _finished(*waiting.popleft())
        while waiting:
            yield _finished(*waiting.popleft())
    finally:
        for _, future in waiting:
            if isinstance(future, Future):
                future.cancel()


def addresses_of(
    stores: Sequence[OffloadStore], storage_options: Sequence[Mapping[str, Any] | None] = ()
) -> list[StoreAddress]:
    """Return the addresses of stores. Raises `ConfigError` if a URL does not open the same store."""
    addresses = [
        StoreAddress(s.url, _encoded(o), _key_id(s)) for s, o in zip_longest(stores, storage_options)
    ]
    for store, address in zip(stores, addresses, strict=True):
        opened = _opened(address)
        if type(opened) is not type(store) or identity_of(opened) != identity_of(store):
            raise ConfigError(
                f"{store!r} cannot be opened by its URL in another process: use a ThreadPoolExecutor, or a "
                "store without wrappers that other processes see, and pass its storage_options"
            )
    return addresses


def _key_id(store: OffloadStore) -> str | None:
    encrypted = encryption_of(store)
    return None if encrypted is None else encrypted.key_id


def _encoded(options: Mapping[str, Any] | None) -> bytes:
    try:
        return msgspec.json.encode(options or {})
    except TypeError as error:
        raise ConfigError(f"storage options for workers must be JSON values: {error}") from error


@contextmanager
def _running(executor: Executor | None, stores: Sequence[OffloadStore]) -> Iterator[Executor | None]:
    """Yield the caller's executor, else a pool that ends with the block, or None for this thread."""
    if executor is not None or not any(store.is_shared for store in stores):
        yield executor
        return
    pool = ThreadPoolExecutor(THREADS, "offload-job")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(
    pool: Executor, call: Callable[[I], T | OffloadError], item: I
) -> Future[T | OffloadError] | OffloadError:
    try:
        return pool.submit(call, item)
    except RuntimeError as error:  # It is broken or shut down.
        return _lost(error)


def _finished(item: I, future: Future[T | OffloadError] | OffloadError) -> tuple[I, T | OffloadError]:
    if isinstance(future, OffloadError):
        return item, future
    try:
        return item, future.result()
    except (Exception, CancelledError) as error:  # noqa: BLE001  # each executor has its own errors for a lost worker
        return item, _lost(error)


def _lost(error: BaseException) -> OffloadError:
    return StoreUnavailableError(f"the worker was lost ({type(error).__name__}: {error}): run it again")


def _call_at(work: Callable[..., T], addresses: Sequence[StoreAddress], item: Any) -> T | OffloadError:
    try:
        return work(*map(_opened, addresses), item)
    except Exception as error:  # noqa: BLE001  # one item fails alone
        return unexpected(error)


@cache
def _opened(address: StoreAddress) -> OffloadStore:
    options = msgspec.json.decode(address.options)
    opens = open_store if address.key_id is None else open_with_key
    store = opens(address.url, storage_options=options)
    if _key_id(store) != address.key_id:
        raise ConfigError(
            f"{store.url} is encrypted: use a ThreadPoolExecutor, or give each worker its {KEY_VARIABLE}"
        )
    return with_layout(store) or store
