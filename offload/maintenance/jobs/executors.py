"""Executors for the commands: threads or processes of this machine, a Dask scheduler, a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from offload.errors import ConfigError, StoreUnavailableError, needs_extra
from offload.storage.store import OffloadStore

T = TypeVar("T")

_RAY = "ray://"
# The schemes of Dask's schedulers.
_DASK = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "inproc://")
_CONNECT_SECONDS = 10


@contextmanager
def executor_of_workers(stores: Sequence[OffloadStore], workers: int) -> Iterator[Executor]:
    """Yield an executor on this machine.

    A store on another machine is waited for most of the time, so threads are enough; local ones take time of
    the processor, so each worker is a process.
    """
    # A forked child would have the locks of threads that it lacks.
    pool: Executor = (
        ThreadPoolExecutor(workers, "offload-job")
        if any(store.is_shared for store in stores)
        else ProcessPoolExecutor(workers, get_context("spawn"))
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def executor_on(url: str) -> Iterator[Executor]:
    """Yield the executor of a running Dask scheduler, such as tcp://host:8786, or Ray cluster, ray://host:10001.

    Its workers need this library, with the extras of the store, and the store's credentials.

    Raises:
        ConfigError: the URL is of neither.
        MissingExtraError: the extra `dask` or `ray` is not installed.
        StoreUnavailableError: nothing answers at the URL.
    """
    if url.startswith(_RAY):
        connected = _ray(url)
    elif url.startswith(_DASK):
        connected = _dask(url)
    else:
        raise ConfigError(
            "expected a Dask scheduler such as tcp://host:8786 or a Ray cluster such as ray://host:10001, "
            f"got {url!r:.80}"
        )
    with connected as executor:
        yield executor


@contextmanager
def _dask(url: str) -> Iterator[Executor]:
    with needs_extra("dask"):
        from distributed import Client  # noqa: PLC0415  # slow to import; few runs need it
    try:
        client = Client(url, timeout=_CONNECT_SECONDS, set_as_default=False)
    except OSError as error:
        raise StoreUnavailableError(f"no Dask scheduler answers at {url}: {error}") from error
    with client:
        yield client.get_executor(pure=False)


@contextmanager
def _ray(url: str) -> Iterator[Executor]:
    with needs_extra("ray"):
        import ray  # noqa: PLC0415  # slow to import; few runs need it
    try:
        connection = ray.init(url, log_to_driver=False, allow_multiple=True)
    except ConnectionError as error:
        raise StoreUnavailableError(f"no Ray cluster answers at {url}: {error}") from error
    with connection:
        yield RayExecutor(ray)


class RayExecutor(Executor):
    """Submits calls to a Ray cluster that this process is connected to; `ray` is the package."""

    def __init__(self, ray: Any) -> None:
        self._run = ray.remote(_run)

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Return the future of a call in a worker of the cluster; function and arguments are pickled."""
        future: Future[T] = self._run.remote(function, args, kwargs).future()
        return future


def _run(function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return function(*args, **kwargs)
