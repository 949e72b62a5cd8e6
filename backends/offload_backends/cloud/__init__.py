"""Stores in Google Cloud Storage and Azure Blob Storage, shared between machines.

A create-only put relies on a condition of the service, `ifGenerationMatch=0` or `If-None-Match: *`. Each
prefix is probed once: two writers create one object at the same time, and one of them must be refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from offload.errors import ConfigError, ExistsError
from offload_backends._bucket.store import BucketStore
from offload_backends._bucket.uploads import Upload
from offload_backends.cloud._race import Race
from offload_backends.cloud._resumable import ResumableUpload

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client

# The address of an account, as Azure's tools write it: the container is before it, or starts the path.
_IN_ACCOUNT = re.compile(r"(?:([^@:/]+)@)?([^@:/.]+)\.(?:dfs|blob)\.core\.([a-z.]+)")
# Where an account is looked for without account_host=. Other clouds have domains of their own.
_PUBLIC_CLOUD = "windows.net"


class _CloudStore(BucketStore):
    """A bucket of a service, each prefix of which is probed by writers at the same time."""

    _probing = Race

    async def _put(self, key: str, data: bytes, overwrite: bool = False) -> None:  # noqa: FBT002  # the loop passes by position
        await super()._put(key, data, overwrite)
        is_certain = overwrite or self.has_atomic_create
        if not is_certain and await self._get(key, 0, len(data) + 1) != data:
            raise ExistsError(f"{self.url}: {key!r} is taken: another writer stored it meanwhile")


class GoogleStore(_CloudStore):
    """Objects under a prefix of a bucket of Google Cloud Storage.

    A request ends within 30 seconds plus the time of its bytes at 1 MiB/s; transient errors are retried
    until then, a refused connection for 3 seconds. An object of up to 16 MiB takes one request, a larger one
    is uploaded in parts of 8 MiB, one after another; it is visible after the last one. An upload that was
    abandoned shows in no listing and ends after a week.

    The first create of a process reads `offload.json` below the prefix, and probes the server if that object
    is absent. Delete it when you move the objects to another server. On a server that ignores conditions a
    create looks for the object before it writes, and reads it back if it has up to 16 MiB.

    Args:
        url: `gs://bucket`, `gs://bucket/prefix`, or with `gcs://`. The bucket must exist.
        storage_options: arguments of `gcsfs.GCSFileSystem`: `token`, `project`, `endpoint_url`,
            `requests_timeout` (seconds for one attempt instead of 3 to connect and 10 without a byte) ….
            Their defaults come from fsspec's configuration and Google's application default credentials.

    Raises:
        ConfigError: the URL has no bucket, or contains credentials, a query or a fragment.
        MissingExtraError: the packages of the extra `gcs` are not installed.
    """

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url, storage_options, extra="gcs", package="gcsfs")

    def _client_class(self) -> Callable[[str, str, str, Mapping[str, Any]], Client]:
        from offload_backends.cloud._google import GoogleClient  # noqa: PLC0415  # loads gcsfs

        return GoogleClient

    def _upload_of(self, key: str, size: int, *, is_create: bool) -> Upload:  # noqa: ARG002  # the server checks each create
        return ResumableUpload(self._client, key, size)


class AzureStore(_CloudStore):
    """Blobs under a prefix of a container of Azure Blob Storage.

    A request ends within 30 seconds plus the time of its bytes at 1 MiB/s; transient errors are retried
    until then, a refused connection for 3 seconds. A blob of up to 16 MiB takes one request, a larger one
    is uploaded in blocks of 8 MiB, four at a time; it is visible after the last request. The service drops
    the blocks of an abandoned upload after a week. The end of a blob is read by two requests.

    The first create of a process reads `offload.json` below the prefix, and probes the server if that blob
    is absent. Delete it when you move the blobs to another server. On a server that ignores conditions a
    create looks for the blob before it writes, and reads it back if it has up to 16 MiB.

    Args:
        url: `az://container` or `az://container/prefix`, or with `abfs://` or `abfss://`; also
            `abfss://container@account.dfs.core.windows.net/prefix` and
            `abfs://account.dfs.core.windows.net/container/prefix`, with the domain of any of Azure's clouds;
            the store's `url` does not contain the account. The container must exist.
        storage_options: arguments of `adlfs.AzureBlobFileSystem`: `account_name`, `account_key`,
            `sas_token`, `connection_string`, `credential`, `connection_timeout` and `read_timeout` (seconds
            of one attempt, 3 and 10) …, and of the login of Azure's tools, `DefaultAzureCredential`, such as
            `exclude_cli_credential`. Their defaults come from fsspec's configuration, `AZURE_STORAGE_…`
            variables and the login of Azure's tools.

    Raises:
        ConfigError: the URL has no container, or contains credentials, a query or a fragment.
        MissingExtraError: the packages of the extra `azure` are not installed.
    """

    _kind = "container"

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        options = dict(storage_options or {})
        scheme, _, rest = url.partition("://")
        place, _, path = rest.partition("/")
        if found := _IN_ACCOUNT.fullmatch(place):
            container, account, cloud = found.groups()
            url = f"{scheme}://{container}/{path}" if container else f"{scheme}://{path}"
            if options.setdefault("account_name", account) != account:
                raise ConfigError(
                    f"the URL names account {account!r}, account_name= another one; pass only one"
                )
            if cloud != _PUBLIC_CLOUD:
                options.setdefault("account_host", f"{account}.blob.core.{cloud}")
        super().__init__(url, options, extra="azure", package="adlfs")

    def _client_class(self) -> Callable[[str, str, str, Mapping[str, Any]], Client]:
        from offload_backends.cloud._azure import AzureClient  # noqa: PLC0415  # loads adlfs

        return AzureClient
