"""Requests to one S3 bucket: connection, the one layer of retries, and what errors mean.

s3fs supplies the connection pool, the credentials and their configuration; its own retries and
botocore's are turned off, because layers of retries multiply. Importing this module is slow.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import fsspec.asyn
import fsspec.config
import s3fs
from aiobotocore.session import AioSession
from botocore import exceptions as boto
from botocore.handlers import add_expect_header
from botocore.loaders import Loader, create_loader
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from offload import errors
from offload_backends._s3_answers import ForeignAnswerError, S3Session
from offload_backends._s3_conditions import Conditions
from offload_backends._shared import Shared, key_of

# A call ends within DEADLINE seconds plus the time of its bytes at SLOWEST bytes a second. No attempt starts
# after LAST_START, so that the last one can end with its error. An endpoint that refuses connections is
# retried for a shorter time: it is most likely the wrong one.
DEADLINE = 30.0
LAST_START = 25.0
UNREACHABLE_DEADLINE = 3.0
SLOWEST = 1024 * 1024
CONNECTIONS = 64
# The size of an object is not known before it is read; the deadline allows for this much.
_ASSUMED_SIZE = 64 * 1024**2
# A smaller body usually fits into the buffer of a socket.
_LARGE_BODY = 256 * 1024

# Servers other than AWS reject or ignore the checksums of newer botocore; puts carry an MD5.
_OLD_CHECKSUMS = {
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
# Storage options for encryption at rest, which s3fs does not know.
ENCRYPTION = ("sse", "sse_kms_key_id", "sse_customer_key")
_CIPHERS = ("AES256", "aws:kms", "aws:kms:dsse")
_CUSTOMER_KEY_BYTES = 32

_TIMEOUTS = {"connect_timeout": 3, "read_timeout": 10}
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")

# AWS says to retry a 409 (a concurrent write to the key); a 501 is permanent.
_TRANSIENT_STATUSES = {408, 409, 429, 500, *range(502, 600)}
_TRANSIENT_CODES = {"RequestTimeout", "XAmzContentSHA256Mismatch", "BadDigest", "SlowDown"}
# Somebody ended this upload; a new one may succeed.
_LOST_UPLOAD = "NoSuchUpload"
_REFUSED_CODES = {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_UNREACHABLE = (boto.ConnectTimeoutError, boto.SSLError, aiohttp.ClientConnectorError)
_TRANSIENT_ERRORS = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.FlexibleChecksumError,
    boto.IncompleteReadError,
    aiohttp.ClientError,
    ConnectionError,
    TimeoutError,
)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
)
_FIXES: dict[type[errors.OffloadError], str] = {
    errors.ExistsError: "; the key is taken",
    errors.StoreMissingError: "; the bucket must exist before the store is used",
    errors.StorePermissionError: (
        "; check the permissions of the credentials in the bucket, and their source: key= and "
        "secret= in storage_options, AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    errors.StoreUnavailableError: "; check endpoint_url and the network, or try later",
}

T = TypeVar("T")

_SYSTEMS: Shared[Any] = Shared()


class S3Client:
    """Requests to the keys below `prefix` in a bucket, over connections that this process shares by options.

    Raises `ConfigError` if s3fs refuses the options, or those of encryption contradict each other.
    """

    def __init__(self, url: str, bucket: str, prefix: str, options: Mapping[str, Any]) -> None:
        self.prefix = prefix
        self.conditions = Conditions(self)
        self._url = url
        self._bucket = bucket
        arguments = _arguments(options)
        try:
            self.system = _SYSTEMS.get(_sharing_key(options), partial(_connected, arguments))
        except (TypeError, KeyError, ValueError) as error:
            raise errors.ConfigError(f"{url}: s3fs refuses the storage options: {error}") from error
        self._chosen = frozenset(arguments["config_kwargs"])
        self._connection: object = None

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Return the result of `function(*args)`, run on fsspec's own loop.

        An interrupt (Ctrl-C) of the waiting thread cancels the call, which could otherwise still write.
        """
        future = self.submit(function, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Start `function(*args)` on fsspec's own loop and return its future.

        Raises `ConfigError` if the caller runs on that loop, so that it would wait for itself.
        """
        if threading.current_thread() is fsspec.asyn.iothread[0]:
            raise errors.ConfigError(
                f"{self._url}: must not be called on fsspec's thread; call from another thread"
            )
        return asyncio.run_coroutine_threadsafe(function(*args), self.system.loop)

    async def is_aws(self) -> bool:
        """Return whether the configured endpoint belongs to AWS."""
        with self._mapped_errors(""):
            async with asyncio.timeout(DEADLINE):
                return _is_aws(await self._connect())

    async def account(self) -> str:
        """Return the configured endpoint and account, or the access key id."""
        with self._mapped_errors(""):
            async with asyncio.timeout(DEADLINE):
                connection = await self._connect()
                signer = connection._request_signer  # noqa: SLF001  # no public attribute has the credentials
                keys = signer._credentials and await signer._credentials.get_frozen_credentials()  # noqa: SLF001
        who = "nobody" if keys is None else getattr(keys, "account_id", None) or keys.access_key
        return f"{connection.meta.endpoint_url} {who}"

    @staticmethod
    def is_unsupported(error: errors.StoreError) -> bool:
        """Return whether the server does not support the request."""
        cause = error.__cause__
        return (
            isinstance(cause, Exception)
            and _meaning(cause) is errors.StoreError
            and _answer(cause)[0] in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED}
        )

    def retrying(self) -> AsyncRetrying:
        """Return the retries of one call: transient errors, with full jitter, until the deadline."""
        return AsyncRetrying(
            retry=retry_if_exception(_is_transient),
            wait=wait_random_exponential(multiplier=0.05, max=5),
            stop=_is_over,
            reraise=True,
        )

    async def call(
        self,
        method: str,
        key: str,
        *,
        size: int = 0,
        retrying: AsyncRetrying | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Call a method of botocore until it succeeds, fails permanently or the deadline has passed.

        `key` is a key of the store or, for a listing, a prefix; the call moves at most `size` bytes. A caller
        that needs the number of attempts afterwards passes the retries. The body of the response is bytes.
        """
        arguments["Prefix" if method == "list_objects_v2" else "Key"] = self.prefix + key

        async def attempt() -> dict[str, Any]:
            await self._connect()
            try:
                # The public method blocks.
                answer: dict[str, Any] = await self.system._call_s3(  # noqa: SLF001
                    method, Bucket=self._bucket, **_sendable(arguments)
                )
            except OSError as error:
                if _answer(error)[0] != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                # The range starts past the end, or the object is empty.
                return {"Body": b""}
            if "Body" in answer:
                async with answer["Body"] as stream:
                    answer["Body"] = await stream.read()
            return answer

        with self._mapped_errors(key):
            async with asyncio.timeout(DEADLINE + size / SLOWEST):
                return await (retrying or self.retrying())(attempt)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them, as `OffloadStore.get` does."""
        size = _ASSUMED_SIZE if end is None else end - start
        answer = await self.call("get_object", key, size=size, **_range(start, end))
        body: bytes = answer["Body"]
        if start < 0 and not body:
            # Some servers refuse a suffix that is longer than the object.
            return (await self.get(key))[start:]
        if "ContentRange" not in answer:
            # The whole object: requested, or sent by a server without ranges.
            return body[start:end]
        return body if end is None else body[: max(0, end - start)]

    async def _connect(self) -> Any:
        try:
            await self.system.set_session()
        except (TypeError, ValueError) as error:
            raise errors.ConfigError(f"{self._url}: s3fs refuses the storage options: {error}") from error
        connection = await self.system.get_s3(self._bucket)
        if connection is not self._connection:
            # Waiting for "100 Continue" would cost a second round trip per put.
            connection.meta.events.unregister("before-call.s3", add_expect_header)
            # Only the connection knows the configured endpoint.
            for name, value in {} if _is_aws(connection) else _OLD_CHECKSUMS.items():
                if name not in self._chosen:
                    setattr(connection.meta.config, name, value)
            self._connection = connection
        return connection

    @contextmanager
    def _mapped_errors(self, subject: str) -> Iterator[None]:
        try:
            yield
        except errors.OffloadError:
            raise
        except Exception as error:
            meaning = _meaning(error)
            if meaning is errors.StorePermissionError:
                # A store that is opened later may find new credentials.
                _SYSTEMS.forget(self.system)
            _, code, reason = _answer(error)
            message = f"{self._url}: {subject!r}: {code}: {reason}{_FIXES.get(meaning, '')}"
            raise meaning(message) from error


class _Body(io.RawIOBase):
    """The body of a request as a file, without a copy of it.

    A socket without room copies bytes as a whole into its buffer, but reads a file piece by piece.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = (0, self._place, len(self._data))[whence] + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        piece = self._data[self._place : self._place + len(buffer)]
        buffer[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)


def _range(start: int, end: int | None) -> dict[str, Any]:
    if start < 0:
        return {"Range": f"bytes={start}"}
    if end is None:
        return {"Range": f"bytes={start}-"} if start else {}
    # HTTP has no empty range; one byte is requested and dropped.
    return {"Range": f"bytes={start}-{max(end - 1, start)}"}


def _sendable(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `arguments` with a large body as a file, a new one for each attempt."""
    body = arguments.get("Body", b"")
    return {**arguments, "Body": _Body(body)} if len(body) > _LARGE_BODY else arguments


def _sharing_key(options: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal where the same connections serve: options, configuration, environment."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return key_of((_merged(options), environment))


def _connected(arguments: Mapping[str, Any]) -> Any:
    system = s3fs.S3FileSystem(**arguments)
    system.retries = 1
    if system.session is None:
        system.session = AioSession(**system.kwargs)
        system.session.register_component(
            "data_loader", _loader(system.session.get_config_variable("data_path"))
        )
    return system


@cache
def _loader(path: str | None) -> Loader:
    """Return a loader of service models; parsing them is nine tenths of the time to open a client."""
    return create_loader(path)


def _merged(options: Mapping[str, Any]) -> dict[str, Any]:
    configured = fsspec.config.conf
    return {**configured.get("s3a", {}), **configured.get("s3", {}), **options}


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of s3fs: those of the configuration and the caller, then the fixed ones."""
    merged = _merged(options)
    config = {
        "max_pool_connections": CONNECTIONS,
        **_TIMEOUTS,
        **(merged.get("config_kwargs") or {}),
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "http_session_cls": S3Session,
    }
    # A listing cache would hide writes of other machines.
    fixed = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False}
    # s3fs passes each method the arguments that it accepts.
    cipher = _encryption(*(merged.pop(name, None) for name in ENCRYPTION))
    extra = {**(merged.get("s3_additional_kwargs") or {}), **cipher}
    return {**merged, **fixed, "config_kwargs": config, "s3_additional_kwargs": extra}


def _encryption(cipher: object, key_id: object, customer_key: object) -> dict[str, Any]:
    """Return the request arguments of the options for encryption at rest."""
    if customer_key is not None:
        if cipher or key_id:
            raise errors.ConfigError("sse_customer_key cannot be combined with sse or sse_kms_key_id")
        return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": _customer_key(customer_key)}
    if cipher not in {None, *_CIPHERS}:
        raise errors.ConfigError(f"sse must be one of {', '.join(_CIPHERS)}, got {cipher!r}")
    if key_id and not str(cipher).startswith("aws:kms"):
        raise errors.ConfigError("sse_kms_key_id needs sse='aws:kms' or sse='aws:kms:dsse'")
    arguments = {"ServerSideEncryption": cipher, "SSEKMSKeyId": key_id}
    return {name: value for name, value in arguments.items() if value}


def _customer_key(option: object) -> bytes:
    key = option
    if isinstance(option, str):
        with suppress(ValueError):
            key = base64.b64decode(option, validate=True)
    if not isinstance(key, bytes) or len(key) != _CUSTOMER_KEY_BYTES:
        # The message does not quote the value, which is a secret even if it is wrong.
        raise errors.ConfigError(
            f"sse_customer_key must be {_CUSTOMER_KEY_BYTES} bytes, or their base64 as text"
        )
    return key


def _is_aws(connection: Any) -> bool:
    host = urlsplit(connection.meta.endpoint_url).hostname or ""
    return host.endswith(_AWS_HOSTS)


def _is_unreachable(error: BaseException | None) -> bool:
    # aiobotocore reports "could not connect" also for a reset during a request; the context has the cause.
    return any(isinstance(e, _UNREACHABLE) for e in (error, getattr(error, "__context__", None)))


def _is_over(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    limit = UNREACHABLE_DEADLINE if _is_unreachable(error) else LAST_START
    return (state.seconds_since_start or 0.0) + state.upcoming_sleep >= limit


def _is_transient(error: BaseException) -> bool:
    status, code, _ = _answer(error)
    if status:
        return status in _TRANSIENT_STATUSES or code in _TRANSIENT_CODES
    return isinstance(error, _TRANSIENT_ERRORS)


def _answer(error: BaseException) -> tuple[int, str, str]:
    """Return HTTP status, error code and text of the response; status 0 if there was none."""
    # s3fs converts botocore's error to a built-in one, with the original as the cause.
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            fields = response.get("Error", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status, fields.get("Code", ""), fields.get("Message", "")
    return 0, type(error).__name__, str(error) or "no answer in time"


def _meaning(error: Exception) -> type[errors.OffloadError]:
    status, code, _ = _answer(error)
    if status == HTTPStatus.PRECONDITION_FAILED:
        return errors.ExistsError
    if code == _LOST_UPLOAD or isinstance(error, ForeignAnswerError):
        return errors.StoreUnavailableError
    if status == HTTPStatus.NOT_FOUND:
        return errors.StoreMissingError if code == "NoSuchBucket" else errors.NotFoundError
    if status in {401, 403} or code in _REFUSED_CODES or isinstance(error, _NO_CREDENTIALS):
        return errors.StorePermissionError
    return errors.StoreUnavailableError if _is_transient(error) else errors.StoreError
