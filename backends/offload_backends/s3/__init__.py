"""A store in an S3 bucket: one request per put and get, shared between machines.

A create-only put relies on `If-None-Match: *`. AWS honors it; any other server is probed once. If it does
not, a create looks for the object before it writes, and the last of two concurrent writers wins. If it does,
a large object, whose last request may take such a server long, is claimed first: see `_claims`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from offload import errors
from offload_backends._bucket.store import BucketStore, Calls
from offload_backends._bucket.uploads import Upload
from offload_backends.s3._uploads import ClaimedUpload

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client
    from offload_backends.s3._client import S3Client

# Fewer keys are deleted one by one.
_MANY = 2


class S3Store(BucketStore):
    """Objects under a prefix of a bucket.

    A request ends within 30 seconds plus the time of its bytes at 1 MiB/s; transient errors are retried
    until then, a refused connection for 3 seconds. An object of up to 16 MiB takes one request, a larger one
    of up to 5 TiB is uploaded in parts of 8 MiB, four at a time. A process that dies meanwhile abandons parts
    that no listing shows; the bucket's lifecycle rule `AbortIncompleteMultipartUpload` removes them.

    At an endpoint other than AWS, the first create of a process reads `offload.json` below the prefix, and
    probes the server if that object is absent. Delete it when you move the objects to another server. A
    listing that crosses folders reads it too, and does not probe. There the create of an object in parts
    takes four more requests: two looks for the object, and a claim `.claim-…` that is deleted afterwards.
    `delete_many` takes a request for each 1,000 keys, or one for each key if the server lacks such requests
    or cannot read the keys in them.

    Args:
        url: `s3://bucket` or `s3://bucket/prefix`. The bucket must exist.
        storage_options: arguments of `s3fs.S3FileSystem`: `key`, `secret`, `token`, `profile`,
            `endpoint_url`, `client_kwargs`, `config_kwargs`, `anon` …. Their defaults come from fsspec's
            configuration and the usual places of AWS tools. Three more set encryption at rest by the
            server: `sse` ("AES256", "aws:kms" or "aws:kms:dsse") and `sse_kms_key_id`, or
            `sse_customer_key` (32 bytes, or their base64 as text), without which the objects cannot be
            read again.

    Raises:
        ConfigError: the URL has no bucket, or contains credentials, a query or a fragment.
        MissingExtraError: the packages of the extra `s3` are not installed.
    """

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url, storage_options, extra="s3", package="s3fs")

    def _client_class(self) -> Callable[[str, str, str, Mapping[str, Any]], Client]:
        from offload_backends.s3._client import S3Client  # noqa: PLC0415  # loads s3fs

        return S3Client

    async def _delete_each(self, keys: Sequence[str]) -> list[errors.OffloadError | None]:
        from offload_backends.s3._deletion import MOST_KEYS, Deletion  # noqa: PLC0415  # loads s3fs

        client = cast("S3Client", self._client)
        if len(keys) < _MANY or not client.deletes_many:
            return await super()._delete_each(keys)
        groups = [keys[at : at + MOST_KEYS] for at in range(0, len(keys), MOST_KEYS)]
        outcomes = await Calls().all([Deletion(client, group).run for group in groups])
        if None in outcomes:
            client.deletes_many = False
            return await super()._delete_each(keys)
        return [error for each in outcomes for error in (each if isinstance(each, list) else [each])]

    def _upload_of(self, key: str, size: int, *, is_create: bool) -> Upload:
        # Others may check the condition and write the object so much later that several writers succeed.
        is_claimed = is_create and not self._client.run(self._client.is_known)
        return (ClaimedUpload if is_claimed else Upload)(self._client, key, size)
