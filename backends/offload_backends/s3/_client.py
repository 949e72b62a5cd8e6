"""Requests to one S3 bucket: connection, and what errors mean.

s3fs supplies the connection pool, the credentials and their configuration; its own retries and
botocore's are turned off, because layers of retries multiply. Importing this module is slow.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
import botocore
import s3fs
from aiobotocore.session import AioSession
from botocore import exceptions as boto
from botocore.handlers import add_expect_header
from botocore.loaders import Loader, create_loader

import offload
from offload import errors
from offload_backends._bucket import client as limits, systems
from offload_backends._bucket.client import CONNECT_TIMEOUT, CONNECTIONS, READ_TIMEOUT, Client, sendable
from offload_backends._bucket.uploads import md5
from offload_backends._checks import check_options, options_of
from offload_backends.s3._answers import S3Session

# Servers other than AWS reject or ignore the checksums of newer botocore; puts carry an MD5.
_OLD_CHECKSUMS = {
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
# Storage options for encryption at rest, which s3fs does not know.
ENCRYPTION = ("sse", "sse_kms_key_id", "sse_customer_key")
_OPTIONS = options_of(s3fs.S3FileSystem, AioSession) | {*ENCRYPTION}
_CIPHERS = ("AES256", "aws:kms", "aws:kms:dsse")
_CUSTOMER_KEY_BYTES = 32

_TIMEOUTS = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT}
# For an unnamed program, botocore composes its name at each request, a fifth of the client's time.
_USER_AGENT = f"offload/{offload.__version__} Botocore/{botocore.__version__}"
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")

# Of AWS and others, for a version; of a bucket of R2; of MinIO and others.
_LOCK = re.compile(r"protected by object lock|ObjectLockedByBucketPolicy|WORM protected")
_UNREACHABLE = (boto.ConnectTimeoutError, boto.SSLError, aiohttp.ClientConnectorError)
_PERMISSION = (
    "; check the permissions of the credentials in the bucket, and their source: key= and "
    "secret= in storage_options, AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)


class S3Client(Client):
    """Requests to the keys below `prefix` in a bucket, over connections that this process shares by options.

    Raises `ConfigError` if s3fs refuses the options, or those of encryption contradict each other.
    """

    fixes: ClassVar = {**Client.fixes, errors.StorePermissionError: _PERMISSION}
    # AWS says to retry a 409 too: a concurrent write to the key.
    transient_codes = frozenset({"RequestTimeout", "XAmzContentSHA256Mismatch", "BadDigest", "SlowDown"})
    transient_errors = (
        boto.HTTPClientError,
        boto.ConnectionError,
        boto.FlexibleChecksumError,
        boto.IncompleteReadError,
        aiohttp.ClientError,
        ConnectionError,
        TimeoutError,
    )
    login_errors = (
        boto.NoCredentialsError,
        boto.PartialCredentialsError,
        boto.CredentialRetrievalError,
        boto.ProfileNotFound,
        boto.TokenRetrievalError,
    )
    login_codes = frozenset({"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"})

    def __init__(self, url: str, bucket: str, prefix: str, options: Mapping[str, Any]) -> None:
        check_options(options, _OPTIONS, url)
        merged = systems.merged(("s3", "s3a"), options)
        arguments = _arguments(merged)
        try:
            system = systems.shared(merged, ("AWS_",), partial(_connected, arguments))
        except (TypeError, KeyError, ValueError) as error:
            raise errors.ConfigError(f"{url}: s3fs refuses the storage options: {error}") from error
        super().__init__(url, prefix, system)
        self._bucket = bucket
        self._chosen = frozenset(arguments["config_kwargs"])
        self._connection: object = None
        # No XML document can name a control character. False too once the server has refused such a document.
        self.deletes_many = prefix.isprintable()

    async def is_known(self) -> bool:
        """Return whether the configured endpoint belongs to AWS."""
        async with self._connected() as connection:
            return _is_aws(connection)

    async def account(self) -> str:
        """Return the configured endpoint and account, or the access key id."""
        async with self._connected() as connection:
            signer = connection._request_signer  # noqa: SLF001  # no public attribute has the credentials
            keys = signer._credentials and await signer._credentials.get_frozen_credentials()  # noqa: SLF001  # s3fs and botocore have no public call for it
        who = "nobody" if keys is None else getattr(keys, "account_id", None) or keys.access_key
        return f"{connection.meta.endpoint_url} {who}"

    def is_ended(self, error: BaseException) -> bool:
        return self.answer(error)[1] == "NoSuchUpload"

    async def attempt(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await self._connect()
        try:
            # The public method blocks.
            answer: dict[str, Any] = await self.system._call_s3(  # noqa: SLF001  # s3fs and botocore have no public call for it
                method, Bucket=self._bucket, **{**arguments, **_body(arguments)}
            )
        except OSError as error:
            if self.answer(error)[0] != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            # The range starts past the end, or the object is empty.
            return {"Body": b""}
        if "Body" in answer:
            async with answer["Body"] as stream:
                answer["Body"] = await stream.read()
        return answer

    def answer(self, error: BaseException) -> tuple[int, str, str]:
        # s3fs converts botocore's error to a built-in one, with the original as the cause.
        for candidate in (error, error.__cause__):
            response = getattr(candidate, "response", None)
            if isinstance(response, dict):
                fields = response.get("Error", {})
                status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                return status, fields.get("Code", ""), fields.get("Message", "")
        return 0, type(error).__name__, str(error) or "no answer in time"

    def is_bucket_missing(self, error: BaseException) -> bool:
        return self.answer(error)[1] == "NoSuchBucket"

    def is_locked(self, error: BaseException) -> bool:
        _, code, reason = self.answer(error)
        return _LOCK.search(f"{code}: {reason}") is not None

    def is_unreachable(self, error: BaseException | None) -> bool:
        # aiobotocore reports "could not connect" for a reset in a request too; the context has the cause.
        return any(isinstance(e, _UNREACHABLE) for e in (error, getattr(error, "__context__", None)))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        with self.mapped_errors(""):
            async with asyncio.timeout(limits.DEADLINE):
                yield await self._connect()

    async def _connect(self) -> Any:
        try:
            await self.system.set_session()
        except (TypeError, ValueError) as error:
            raise errors.ConfigError(f"{self.url}: s3fs refuses the storage options: {error}") from error
        connection = await self.system.get_s3(self._bucket)
        if connection is not self._connection:
            # Waiting for "100 Continue" would cost a second round trip per put.
            connection.meta.events.unregister("before-call.s3", add_expect_header)
            connection.meta.events.register("before-call.s3.DeleteObjects", _with_md5)
            # Only the connection knows the configured endpoint.
            for name, value in {} if _is_aws(connection) else _OLD_CHECKSUMS.items():
                if name not in self._chosen:
                    setattr(connection.meta.config, name, value)
            self._connection = connection
        return connection


def _with_md5(params: dict[str, Any], **_: Any) -> None:
    """Add the checksum that every server knows to a request of many keys: some refuse newer ones."""
    params["headers"]["Content-MD5"] = md5(params["body"])


def _body(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request in the form to send it, a new one for each attempt, and its checksum."""
    if "Body" not in arguments:
        return {}
    # A bucket with Object Lock refuses an object without one.
    checksum = arguments.get("ContentMD5") or md5(arguments["Body"])
    return {"Body": sendable(arguments["Body"]), "ContentMD5": checksum}


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


def _arguments(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of s3fs: the `merged` options, then the fixed ones."""
    config = {
        "max_pool_connections": CONNECTIONS,
        **_TIMEOUTS,
        "user_agent": _USER_AGENT,
        **(merged.get("config_kwargs") or {}),
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "http_session_cls": S3Session,
    }
    # s3fs passes each method the arguments that it accepts.
    cipher = _encryption(*(merged.get(name) for name in ENCRYPTION))
    extra = {**(merged.get("s3_additional_kwargs") or {}), **cipher}
    known = {name: value for name, value in merged.items() if name not in ENCRYPTION}
    return {**known, **systems.FIXED_OPTIONS, "config_kwargs": config, "s3_additional_kwargs": extra}


def _encryption(cipher: object, key_id: object, customer_key: object) -> dict[str, Any]:
    """Return the request arguments of the options for encryption at rest."""
    if customer_key is not None:
        if cipher or key_id:
            raise errors.ConfigError("sse_customer_key cannot be combined with sse or sse_kms_key_id")
        return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": _customer_key(customer_key)}
    if cipher is not None:
        errors.check_choice("sse", cipher, _CIPHERS)
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
