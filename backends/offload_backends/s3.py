"""A store in an S3 bucket: one request per put and get, shared between machines.

Create-only puts rely on `If-None-Match: *`. AWS, Ceph, SeaweedFS and MinIO honour it; a server that
ignores it lets the last of two concurrent writers win.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from offload.errors import (
    ConfigError,
    ExistsError,
    MissingExtraError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StoreUnavailableError,
)
from offload.keys import check_key
from offload.store import Durability, StoredObject, check_range
from offload_backends._checks import is_key

if TYPE_CHECKING:
    from offload_backends._s3_client import S3Client

_SCHEME = "s3://"
_PACKAGES = ("s3fs", "tenacity")
_PAGE = 1000
_CONCURRENT = 64
_MAX_SIZE = 5 * 1024**3
# A whole object's size is not known before it is read: the deadline allows for this much.
_ASSUMED_SIZE = 64 * 1024**2

T = TypeVar("T")


class S3Store:
    """Objects under a prefix of a bucket.

    A call ends within 30 seconds and what its bytes take at 1 MiB/s; errors that may pass are retried
    until then, an endpoint that takes no connection for 3 seconds. An object has at most 5 GiB.

    Args:
        url: `s3://bucket` or `s3://bucket/prefix`. The bucket must exist.
        storage_options: arguments of `s3fs.S3FileSystem`: `key`, `secret`, `token`, `profile`,
            `endpoint_url`, `client_kwargs`, `config_kwargs`, `anon` …. What they leave open comes
            from fsspec's configuration and from the places where AWS's tools look.

    Raises:
        ConfigError: the URL names no bucket, or holds credentials, a query or a fragment.
        MissingExtraError: the packages of the extra `s3` are not installed.
    """

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        self._bucket, self._prefix = _parse(url)
        self._options = dict(storage_options or {})
        self._clients: dict[int, S3Client] = {}
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise MissingExtraError(f"{self.url} needs {' and '.join(missing)}: pip install 'offload[s3]'")

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        """Bucket and prefix; endpoint and credentials are storage options."""
        return f"{_SCHEME}{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def is_shared(self) -> bool:
        """True: every machine that reaches the endpoint sees the bucket."""
        return True

    @property
    def has_atomic_create(self) -> bool:
        """True where the server honours `If-None-Match`."""
        return True

    @property
    def durability(self) -> Durability:
        """A power cut: the service answers once the object is durable."""
        return "power"

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key` in one request; see `OffloadStore.put`."""
        check_key(key)
        self._client().run(self._put, key, data, overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range in one request; see `OffloadStore.get`."""
        check_key(key)
        check_range(start, end)
        return self._client().run(self._get, key, start, end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order, a request per 1,000; see `OffloadStore.keys`."""
        position = {"StartAfter": self._prefix + after} if after else {}
        while True:
            page = self._client().run(self._list, prefix, position)
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(self._prefix)
                if key > after and is_key(key):
                    yield StoredObject(key, item["Size"], item["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        check_key(key)
        self._client().run(self._delete, key)

    def put_many(self, items: Sequence[tuple[str, bytes]]) -> list[OffloadError | None]:
        """Create up to 64 objects at a time; see `SupportsBulk.put_many`."""
        return self._client().run(_each, [partial(self._put, key, data) for key, data in items])

    def get_many(self, keys: Sequence[str]) -> list[bytes | OffloadError]:
        """Return up to 64 objects at a time; see `SupportsBulk.get_many`."""
        return self._client().run(_each, [partial(self._get, key) for key in keys])

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove up to 64 objects at a time; see `SupportsBulk.delete_many`."""
        checked = [check_key(key) for key in keys]
        results = self._client().run(_each, [partial(self._delete, key) for key in checked])
        for error in filter(None, results):
            raise error

    def _client(self) -> S3Client:
        # Connections do not survive a fork, and a lock may be held during one: each process builds
        # its own, and of two threads that build at once the first to finish is used by both.
        client = self._clients.get(os.getpid())
        if client is None:
            from offload_backends._s3_client import S3Client  # noqa: PLC0415  # loads s3fs

            built = S3Client(self.url, self._bucket, self._options)
            client = self._clients.setdefault(os.getpid(), built)
        return client

    async def _put(self, key: str, data: bytes, overwrite: bool = False) -> None:  # noqa: FBT002  # the loop passes by position
        full_key = self._prefix + check_key(key)
        if len(data) > _MAX_SIZE:
            raise StoreError(f"{self.url}: {key!r} has {len(data)} bytes, one put at most {_MAX_SIZE}")
        client = self._client()
        retrying = client.retrying()
        arguments: dict[str, Any] = {"Body": data, "ContentMD5": _md5(data)}
        if not overwrite:
            arguments["IfNoneMatch"] = "*"
        try:
            await client.call("put_object", key, size=len(data), retrying=retrying, Key=full_key, **arguments)
        except ExistsError:
            # Perhaps our own first try took the key: it arrived, and its answer was lost.
            was_retried = retrying.statistics["attempt_number"] > 1
            if not was_retried or await self._get(key) != data:
                raise

    async def _get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        full_key = self._prefix + check_key(key)
        size = _ASSUMED_SIZE if end is None else end - start
        answer = await self._client().call("get_object", key, size=size, Key=full_key, **_range(start, end))
        body: bytes = answer["Body"]
        if "ContentRange" not in answer:
            # The whole object: asked for, or sent by a server that knows no ranges.
            return body[start:end]
        return body if end is None else body[: max(0, end - start)]

    async def _list(self, prefix: str, position: Mapping[str, Any]) -> dict[str, Any]:
        return await self._client().call(
            "list_objects_v2", prefix, Prefix=self._prefix + prefix, MaxKeys=_PAGE, **position
        )

    async def _delete(self, key: str) -> None:
        full_key = self._prefix + check_key(key)
        with suppress(NotFoundError):
            await self._client().call("delete_object", key, Key=full_key)


def _parse(url: str) -> tuple[str, str]:
    """Return bucket and prefix; the prefix is empty or ends in a slash."""
    bucket, _, path = url.removeprefix(_SCHEME).partition("/")
    if "@" in bucket:
        raise ConfigError("an s3 URL holds no credentials: give key= and secret= in storage_options")
    if "?" in url or "#" in url:
        raise ConfigError("an s3 URL is s3://bucket/prefix: it takes no query and no fragment")
    if not bucket or not url.startswith(_SCHEME):
        raise ConfigError(f"{url}: an s3 URL names a bucket: s3://bucket/prefix")
    path = path.strip("/")
    return bucket, f"{path}/" if path else ""


def _range(start: int, end: int | None) -> dict[str, Any]:
    if start < 0:
        return {"Range": f"bytes={start}"}
    if end is None:
        return {"Range": f"bytes={start}-"} if start else {}
    # An empty range has no spelling; one byte of it is asked for and dropped.
    return {"Range": f"bytes={start}-{max(end - 1, start)}"}


def _md5(data: bytes) -> str:
    """Return the checksum that every S3 server compares with what arrived."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


async def _each(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | OffloadError]:
    """Return each call's result or error in order, running a bounded number of them at a time.

    Once the bucket as a whole is found to fail the rest is not tried: one deadline is waited for.
    """
    gate = asyncio.Semaphore(_CONCURRENT)
    failures: list[OffloadError] = []

    async def one(call: Callable[[], Coroutine[Any, Any, T]]) -> T | OffloadError:
        async with gate:
            if failures:
                return failures[0]
            try:
                return await call()
            except OffloadError as error:
                if isinstance(error, StoreUnavailableError | StoreMissingError):
                    failures.append(error)
                return error

    return await asyncio.gather(*map(one, calls))


if TYPE_CHECKING:
    from offload.store import OffloadStore, SupportsBulk

    _conforms: type[OffloadStore] = S3Store
    _moves_many: type[SupportsBulk] = S3Store
