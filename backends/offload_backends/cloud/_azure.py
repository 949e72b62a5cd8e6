"""Requests to one container of Azure Blob Storage.

adlfs supplies the client of Microsoft's package with its connections and credentials; the retries of that
package are turned off, because layers of retries multiply. Importing this module is slow.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any

from adlfs import AzureBlobFileSystem
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceModifiedError,
)
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobPrefix

from offload import errors
from offload_backends._bucket import systems
from offload_backends._bucket.client import CONNECT_TIMEOUT, READ_TIMEOUT, TRANSIENT_STATUSES, sendable
from offload_backends._checks import check_options, options_of
from offload_backends.cloud._client import CloudClient, check_no_page, opened

_SCHEMES = ("az", "abfs", "abfss")
_LIMITS = {"connection_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT}
_TAKEN = {"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "UnauthorizedBlobOverwrite"}
_NO_CONTAINER = {"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
# By a policy or a legal hold.
_LOCK = "BlobImmutableDueTo"
# adlfs passes other options to the login: `azure.identity.DefaultAzureCredential`.
_OF_LOGIN = {
    "additionally_allowed_tenants",
    "authority",
    "connection_cert",
    "connection_verify",
    "disable_instance_discovery",
    "logging_enable",
    "managed_identity_client_id",
    "process_timeout",
    "proxies",
    "require_envvar",
    "shared_cache_tenant_id",
    "shared_cache_username",
    "visual_studio_code_tenant_id",
    "workload_identity_client_id",
    "workload_identity_tenant_id",
}
_EXCLUSION = re.compile(r"exclude_\w+_credential")
_FIXES: dict[type[errors.OffloadError], str] = {
    **CloudClient.fixes,
    errors.StoreMissingError: "; the container must exist before the store is used",
    errors.StorePermissionError: (
        "; the credentials need to read, write, delete and list blobs of the container (role Storage Blob "
        "Data Contributor, or a SAS with rwdl); they come from storage_options, such as account_key= or "
        "sas_token=, AZURE_STORAGE_… variables or the login of Azure's tools"
    ),
    errors.StoreUnavailableError: "; check account_name, account_host and the network, or try later",
}

# The responses to the requests of one attempt.
_received: ContextVar[list[Any]] = ContextVar("received")


class AzureClient(CloudClient):
    """Requests to the keys below `prefix` in a container.

    Raises `ConfigError` if adlfs refuses the options.
    """

    fixes = _FIXES
    # A conflict is the answer to a lease, a lock or a container that is being deleted.
    transient_statuses = TRANSIENT_STATUSES
    transient_errors = (*CloudClient.transient_errors, AzureError)
    login_errors = (ClientAuthenticationError,)

    def __init__(self, url: str, bucket: str, prefix: str, options: Mapping[str, Any]) -> None:
        exclusions = {name for name in options if _EXCLUSION.fullmatch(name)}
        check_options(options, options_of(AzureBlobFileSystem) | _OF_LOGIN | exclusions, url)
        merged = {**_LIMITS, **systems.merged(_SCHEMES, options)}
        limits = opened(url, "adlfs", merged, lambda: {name: float(merged[name]) for name in _LIMITS})
        connect = partial(AzureBlobFileSystem, **{**merged, **systems.FIXED_OPTIONS})
        system = opened(url, "adlfs", merged, partial(systems.shared, merged, ("AZURE_",), connect))
        _check_account(url, merged.get("account_name"), system.connection_string or "")
        super().__init__(url, bucket, prefix, system, limits["read_timeout"])
        # The options of each request.
        self._each = {
            **system._timeout_kwargs,  # noqa: SLF001  # no public attribute has them
            **limits,
            "retry_total": 0,
            "permit_redirects": False,
            "raw_request_hook": _prepare,
            "raw_response_hook": _check,
        }

    async def account(self) -> str:
        """Return the endpoint, which names the account."""
        host: str = self.system.service_client.primary_hostname
        return host

    async def attempt(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        responses: list[Any] = []
        _received.set(responses)
        try:
            return await super().attempt(method, arguments)
        except BaseException:
            # The package does not close a response whose body was not read to its end.
            for each in responses:
                await each.close()
            raise

    async def put_object(
        self,
        *,
        Key: str,
        Body: bytes,
        IfNoneMatch: str = "",
        ContentMD5: str = "",  # noqa: ARG002  # the package computes it
    ) -> dict[str, Any]:
        blob = await self._blob(Key)
        await blob.upload_blob(Body, overwrite=not IfNoneMatch, validate_content="md5", **self._each)
        return {}

    async def get_object(self, *, Key: str, Range: str = "") -> dict[str, Any]:
        blob = await self._blob(Key)
        start, end = await self._limits(blob, Range)
        length = None if end is None else end - start
        try:
            stream = await blob.download_blob(
                offset=start if Range else None, length=length, max_concurrency=4, **self._each
            )
            body = await stream.readall()
        except ResourceModifiedError as error:
            # The package reads a large blob in several requests; the retry reads the new one.
            raise ConnectionError("the blob was replaced while it was read") from error
        except HttpResponseError as error:
            if error.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            # The range starts past the end, or the object is empty.
            body = b""
        return {"Body": body, **({"ContentRange": Range} if Range else {})}

    async def head_object(self, *, Key: str) -> dict[str, Any]:
        blob = await self._blob(Key)
        return {"ContentLength": (await blob.get_blob_properties(**self._each)).size}

    async def delete_object(self, *, Key: str) -> dict[str, Any]:
        await (await self._blob(Key)).delete_blob(**self._each)
        return {}

    async def list_objects_v2(
        self,
        *,
        Prefix: str,
        MaxKeys: int = 1000,
        Delimiter: str = "",
        StartAfter: str = "",
        ContinuationToken: str = "",
    ) -> dict[str, Any]:
        container = (await self._service()).get_container_client(self._bucket)
        walk = partial(container.walk_blobs, delimiter=Delimiter) if Delimiter else container.list_blobs
        # The page starts with the blob of this name; some servers list from the beginning.
        start = {"start_from": StartAfter} if StartAfter else {}
        each = {"include": ["metadata"], "results_per_page": MaxKeys, **start, **self._each}
        pages = walk(name_starts_with=Prefix, **each).by_page(ContinuationToken or None)
        try:
            entries = [entry async for entry in await anext(pages)]
        except HttpResponseError as error:
            if not start or error.status_code != HTTPStatus.BAD_REQUEST:
                raise
            # Accounts with folders may refuse a start inside of one; what comes before it is skipped.
            return await self.list_objects_v2(Prefix=Prefix, MaxKeys=MaxKeys, Delimiter=Delimiter)
        folders = [entry.name for entry in entries if isinstance(entry, BlobPrefix)]
        objects = [entry for entry in entries if not isinstance(entry, BlobPrefix) and not _is_folder(entry)]
        return {
            "Contents": [
                {"Key": each.name, "Size": each.size, "LastModified": each.last_modified} for each in objects
            ],
            "CommonPrefixes": [{"Prefix": folder} for folder in folders],
            "IsTruncated": bool(pages.continuation_token),
            "NextContinuationToken": pages.continuation_token,
        }

    async def create_multipart_upload(self, *, Key: str) -> dict[str, Any]:  # noqa: ARG002  # there is nothing to begin
        # Writers of one blob share its uncommitted blocks, so their names must differ.
        return {"UploadId": secrets.token_hex(16)}

    async def upload_part(
        self,
        *,
        Key: str,
        UploadId: str,
        PartNumber: int,
        Body: bytes,
        ContentMD5: str,  # noqa: ARG002  # the package computes it
    ) -> dict[str, Any]:
        block = f"{UploadId}{PartNumber:08}"
        await (await self._blob(Key)).stage_block(block, Body, validate_content="md5", **self._each)
        return {"ETag": block}

    async def complete_multipart_upload(
        self,
        *,
        Key: str,
        UploadId: str,  # noqa: ARG002  # the parts name it
        MultipartUpload: dict[str, Any],
        IfNoneMatch: str = "",
    ) -> dict[str, Any]:
        blocks = [BlobBlock(part["ETag"]) for part in MultipartUpload["Parts"]]
        condition = {"match_condition": MatchConditions.IfMissing} if IfNoneMatch else {}
        await (await self._blob(Key)).commit_block_list(blocks, **condition, **self._each)
        return {}

    async def abort_multipart_upload(self, *, Key: str, UploadId: str) -> dict[str, Any]:  # noqa: ARG002  # it cannot be undone
        # The service drops uncommitted blocks after a week.
        return {}

    def answer(self, error: BaseException) -> tuple[int, str, str]:
        code = getattr(error, "error_code", None) or type(error).__name__
        text = str(getattr(error, "message", "") or error).partition("\n")[0] or "no answer in time"
        return getattr(error, "status_code", None) or 0, str(getattr(code, "value", code)), text

    def is_transient(self, error: BaseException) -> bool:
        is_login = isinstance(error, ClientAuthenticationError) and not self.answer(error)[0]
        return not is_login and super().is_transient(error)

    def is_unreachable(self, error: BaseException | None) -> bool:
        return super().is_unreachable(getattr(error, "inner_exception", error))

    def is_locked(self, error: BaseException) -> bool:
        return self.answer(error)[1].startswith(_LOCK)

    def is_taken(self, error: BaseException) -> bool:
        status, code, _ = self.answer(error)
        is_bare_conflict = status == HTTPStatus.CONFLICT and not getattr(error, "error_code", None)
        return code in _TAKEN or is_bare_conflict or super().is_taken(error)

    def is_bucket_missing(self, error: BaseException) -> bool:
        return self.answer(error)[1] in _NO_CONTAINER

    def is_ended(self, error: BaseException) -> bool:
        # Another writer's completion dropped the blocks.
        return self.answer(error)[1] == "InvalidBlockList"

    async def _service(self) -> Any:
        service = self.system.service_client
        transport = service._pipeline._transport  # noqa: SLF001  # no public attribute has it
        await transport.open()
        # A silent retry would meet the object that the first request had stored.
        transport.session._retry_connection = False  # noqa: SLF001  # there is no argument for it
        return service

    async def _blob(self, name: str) -> Any:
        return (await self._service()).get_blob_client(self._bucket, name)

    async def _limits(self, blob: Any, text: str) -> tuple[int, int | None]:
        """Return start and end of a range; the service knows no suffix, so that one costs a request."""
        first, _, last = text.removeprefix("bytes=").partition("-")
        if not first and last:
            size = (await blob.get_blob_properties(**self._each)).size
            return max(0, size - int(last)), None
        return int(first or 0), int(last) + 1 if last else None


def _prepare(request: Any) -> None:
    body = request.http_request.data
    if isinstance(body, bytes):
        request.http_request.data = sendable(body)


def _check(answer: Any) -> None:
    _received.get().append(answer.http_response)
    check_no_page(answer.http_response.headers, answer.http_response.status_code, ("x-ms-",))


def _check_account(url: str, named: str | None, connection_string: str) -> None:
    # adlfs prefers a connection string, also one of the environment. One with a SAS may name no account.
    found = re.search(r"(?:^|;)AccountName=([^;]+)", connection_string)
    if named and found and named != found[1]:
        raise errors.ConfigError(
            f"{url}: the connection string names account {found[1]!r}, the URL or account_name= {named!r}"
        )


def _close_nothing_in_child() -> None:
    # At exit adlfs closes its connections on the loop of the parent, and would wait for it for ever.
    for call in tuple(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001  # adlfs keeps no handle
        alive = call.peek()
        if alive is not None and isinstance(alive[0], AzureBlobFileSystem):
            call.atexit = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_nothing_in_child)


def _is_folder(entry: Any) -> bool:
    """Return whether an entry is a folder of an account with a hierarchical namespace."""
    metadata = {name.lower(): value for name, value in (entry.metadata or {}).items()}
    return metadata.get("hdi_isfolder") == "true"
