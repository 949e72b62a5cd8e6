"""A store in a bucket or container of a remote service: what the stores of all such services share.

A create-only put relies on a condition that the server checks. A server that is not known to check it is
probed once. If it does not, a create looks for the object before it writes, and the last of two concurrent
writers wins.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from offload import errors
from offload.base.threads.locks import NO_FORK
from offload.storage.layout import check_key
from offload.storage.store import Durability, StoredObject, check_range, sized, without_secrets
from offload_backends._bucket.conditions import Conditions
from offload_backends._bucket.listing import Listing
from offload_backends._bucket.uploads import MAX_SIZE, Upload, md5
from offload_backends._shared import Shared

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client

_CONCURRENT = 64
# A larger object is uploaded in parts.
_ONE_PUT = 16 * 1024**2

T = TypeVar("T")


@dataclass(frozen=True)
class _Bucket:
    """The client and the known features of the server, shared by the stores of one process at one URL."""

    client: Client
    conditions: Conditions


# By URL and connections.
_BUCKETS: Shared[_Bucket] = Shared()


class BucketStore(ABC):
    """Objects below a prefix of a bucket; `package` sends the requests, and `extra` installs it.

    The store's `url` contains no credentials. Raises `ConfigError` for a URL with credentials or without a
    bucket, and `MissingExtraError` if the package is not installed.
    """

    is_shared = True
    durability: Durability = "power"  # The service answers once the object is durable.
    # How the features of the server are found out.
    _probing: type[Conditions] = Conditions
    # The service's word for a bucket.
    _kind = "bucket"

    def __init__(self, url: str, options: Mapping[str, Any] | None, *, extra: str, package: str) -> None:
        scheme, self._bucket, path = _parse(url, self._kind)
        path = path.strip("/")
        self._prefix = f"{path}/" if path else ""
        self.url = f"{scheme}://{self._bucket}/{path}".rstrip("/")
        self._extra = extra
        missing = [name for name in (package, "tenacity") if find_spec(name) is None]
        if missing:
            command = f"pip install 'offload[{extra}]'"
            raise errors.MissingExtraError(f"{self.url} needs {' and '.join(missing)}: {command}")
        self._options = dict(options or {})
        self._used: tuple[int, _Bucket] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def identity(self) -> str:
        """Return the address, and a digest of endpoint and account; this connects but sends no request."""
        account = self._client.run(self._client.account)
        return f"{self.url} {sha256(account.encode()).hexdigest()}"

    @property
    def has_atomic_create(self) -> bool:
        """True, unless this process found that the server ignores or refuses the condition of a create.

        The first create finds out; before it, the value is certain for AWS only. It holds for objects of any
        size, but at an S3 server other than AWS not between an object of up to 16 MiB and a larger one that
        are created under one key at the same moment.
        """
        return self._used is None or self._used[1].conditions.known in {None, "enforced"}

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        check_key(key)
        if len(data) > _ONE_PUT:
            self._upload(key, [data], len(data), overwrite=overwrite)
        else:
            self._client.run(self._put, key, data, overwrite)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        check_key(key)
        if size > _ONE_PUT:
            self._upload(key, pieces, size)
        else:
            self.put(key, b"".join(sized(pieces, size)))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(start, end)
        return self._client.run(self._get, key, start, end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order, a request per 1,000; see `OffloadStore.keys`.

        On servers that sort by folders, a listing that crosses folders also takes a request for each.
        """
        yield from Listing(self._client, self._conditions).keys(prefix, after)

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the folders of `prefix`, a request per 1,000; see `SupportsFolders.folders`."""
        yield from Listing(self._client, self._conditions).folders(prefix)

    def delete(self, key: str) -> None:
        check_key(key)
        self._client.run(self._delete, key)

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[errors.OffloadError | None]:
        client, calls = self._client, Calls()
        started: list[Future[errors.OffloadError | None] | errors.OffloadError | None] = []
        try:
            for key, data in items:
                if len(data) <= _ONE_PUT:
                    started.append(client.submit(calls.one, partial(self._put, key, data, overwrite)))
                else:
                    started.append(errors.result_or_error(self.put, key, data, overwrite=overwrite))
            return [each.result() if isinstance(each, Future) else each for each in started]
        except BaseException:
            for each in started:
                if isinstance(each, Future):
                    each.cancel()
            raise

    def get_many(self, keys: Sequence[str]) -> list[bytes | errors.OffloadError]:
        return self._client.run(Calls().all, [partial(self._get, key) for key in keys])

    def delete_many(self, keys: Iterable[str]) -> None:
        checked = [*dict.fromkeys(check_key(key) for key in keys)]
        for error in filter(None, self._client.run(self._delete_each, checked)):
            raise error

    @property
    def _client(self) -> Client:
        return self._bucket_of_process().client

    @property
    def _conditions(self) -> Conditions:
        return self._bucket_of_process().conditions

    def _bucket_of_process(self) -> _Bucket:
        # Connections do not survive a fork, and a forked child cannot await a question of its parent.
        if self._used is None or self._used[0] != os.getpid():
            self._used = os.getpid(), self._connect()
        return self._used[1]

    def _connect(self) -> _Bucket:
        try:
            with NO_FORK:  # It imports a package.
                client_class = self._client_class()
            opened = client_class(self.url, self._bucket, self._prefix, self._options)
        except (ImportError, AttributeError) as error:
            # A release of the package that lacks a name that the client uses.
            command = f"pip install --upgrade 'offload[{self._extra}]'"
            raise errors.MissingExtraError(f"{self.url}: {error}: {command}") from error
        return _BUCKETS.get((self.url, id(opened.system)), lambda: _Bucket(opened, self._probing(opened)))

    @abstractmethod
    def _client_class(self) -> Callable[[str, str, str, Mapping[str, Any]], Client]:
        """Return the class of the service's clients; this loads its package."""

    def _upload_of(self, key: str, size: int, *, is_create: bool) -> Upload:  # noqa: ARG002  # the server checks each create
        return Upload(self._client, key, size)

    async def _put(self, key: str, data: bytes, overwrite: bool = False) -> None:  # noqa: FBT002  # the loop passes by position
        check_key(key)
        condition = {} if overwrite else await self._create_only(key)
        client = self._client
        retrying = client.retrying()
        arguments: dict[str, Any] = {"Body": data, "ContentMD5": md5(data), **condition}
        try:
            await client.call("put_object", key, size=len(data), retrying=retrying, **arguments)
        except errors.ExistsError:
            # The answer of a first attempt that stored the object may have been lost.
            was_retried = retrying.statistics["attempt_number"] > 1
            if not was_retried or await client.get(key, 0, len(data) + 1) != data:
                raise

    def _upload(self, key: str, pieces: Iterable[bytes], size: int, *, overwrite: bool = False) -> None:
        if size > MAX_SIZE:
            raise errors.StoreError(
                f"{self.url}: an object must have at most {MAX_SIZE} bytes, {key!r} has {size}"
            )

        async def condition() -> dict[str, str]:
            return {} if overwrite else await self._create_only(key, in_parts=True)

        is_create = not overwrite and self._client.run(self._conditions.creates) == "enforced"
        self._upload_of(key, size, is_create=is_create).store(pieces, condition)

    async def _create_only(self, key: str, *, in_parts: bool = False) -> dict[str, str]:
        """Return the arguments of a create-only put; raise `ExistsError` if the key is known to be taken."""
        is_enforced = await self._conditions.creates() == "enforced"
        # Some servers check the condition of a put and ignore it on a completion.
        if not is_enforced or (in_parts and not await self._client.is_known()):
            await self._check_free(key)
        return {"IfNoneMatch": "*"} if is_enforced else {}

    async def _check_free(self, key: str) -> None:
        with suppress(errors.NotFoundError):
            await self._client.call("head_object", key)
            raise errors.ExistsError(f"{self.url}: {key!r} is taken")

    async def _get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._client.get(check_key(key), start, end)

    async def _delete_each(self, keys: Sequence[str]) -> list[errors.OffloadError | None]:
        """Delete keys, each of which occurs once, and return the errors."""
        return await Calls().all([partial(self._delete, key) for key in keys])

    async def _delete(self, key: str) -> None:
        check_key(key)
        with suppress(errors.NotFoundError):
            await self._client.call("delete_object", key)


def _parse(url: str, kind: str) -> tuple[str, str, str]:
    """Return scheme, bucket and path."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    # A secret may contain a slash; the only bucket with a colon is an access point of S3.
    if "@" in bucket or (":" in bucket and not bucket.startswith("arn:")):
        raise errors.ConfigError(f"{scheme} URLs must not contain credentials; pass them in storage_options")
    if "?" in url or "#" in url:
        raise errors.ConfigError(f"the URL must be {scheme}://{kind}/prefix, without query and fragment")
    if not bucket:
        raise errors.ConfigError(
            f"{without_secrets(url)}: the URL must name a {kind}: {scheme}://{kind}/prefix"
        )
    return scheme, bucket, path


class Calls:
    """Calls of one bulk verb, of which a bounded number run at a time.

    When the whole bucket has failed, the other calls are not tried, so that they share one deadline.
    """

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(_CONCURRENT)
        self._failure: errors.OffloadError | None = None

    async def one(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | errors.OffloadError:
        async with self._gate:
            if self._failure is not None:
                return self._failure
            try:
                return await call()
            except errors.OffloadError as error:
                if isinstance(error, errors.StoreUnavailableError | errors.StoreMissingError):
                    self._failure = error
                return error

    async def all(
        self, calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]
    ) -> list[T | errors.OffloadError]:
        return await asyncio.gather(*map(self.one, calls))
