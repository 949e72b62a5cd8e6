"""Requests to one bucket of Google Cloud Storage, by its JSON interface.

gcsfs supplies the connection pool, the endpoint and the credentials. Its own requests are not used: each is
repeated six times with pauses of up to 32 seconds, reports a missing bucket as a missing object, and sends an
object between two lines of a fixed text, which the object may contain. Importing this module is slow.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import aiohttp
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from google.auth.exceptions import GoogleAuthError, TransportError
from requests import RequestException

from offload import errors
from offload_backends._bucket import systems
from offload_backends._bucket.client import CONNECT_TIMEOUT, READ_TIMEOUT, ForeignAnswerError, sendable
from offload_backends._bucket.uploads import md5
from offload_backends._checks import check_options, options_of
from offload_backends.cloud._client import CloudClient, check_no_page, opened

_SCHEMES = ("gs", "gcs")
_VARIABLES = ("GOOGLE_", "GCSFS_", "STORAGE_EMULATOR_HOST", "CLOUDSDK_")
_FIELDS = "kind,nextPageToken,prefixes,items(name,size,updated)"
_RESUME = 308
_CANCELLED = 499
_NO_BUCKET = "no bucket"
_LOCKS = {"retentionPolicyNotMet", "objectUnderActiveHold"}
# A hold may have the reason of a missing permission.
_HOLD = re.compile(r"under active .* hold")
_PERMISSION = (
    "; the credentials need storage.objects.create, get, list and delete in the bucket (role Storage "
    "Object User); they come from token= in storage_options or Google's application default credentials"
)


class _RefusedError(Exception):
    """The service answered with an error: status, reason and text."""


class GoogleClient(CloudClient):
    """Requests to the keys below `prefix` in a bucket. Raises `ConfigError` if gcsfs refuses the options."""

    fixes: ClassVar = {**CloudClient.fixes, errors.StorePermissionError: _PERMISSION}
    transient_codes = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
    transient_errors = (*CloudClient.transient_errors, TransportError, RequestException)
    # Those of gcsfs come from the refresh of a token.
    login_errors = (GoogleAuthError, HttpError, NonRetryableError)

    def __init__(self, url: str, bucket: str, prefix: str, options: Mapping[str, Any]) -> None:
        check_options(options, options_of(GCSFileSystem), url)
        merged = systems.merged(_SCHEMES, options)
        patience = opened(url, "gcsfs", merged, lambda: float(merged.get("requests_timeout") or 0))
        connect = partial(GCSFileSystem, **{**merged, **systems.FIXED_OPTIONS})
        system = opened(url, "gcsfs", merged, partial(systems.shared, merged, _VARIABLES, connect))
        super().__init__(url, bucket, prefix, system, patience)
        self._limits = aiohttp.ClientTimeout(
            total=patience or None,
            sock_connect=None if patience else CONNECT_TIMEOUT,
            sock_read=None if patience else READ_TIMEOUT,
        )
        self._objects = f"/storage/v1/b/{quote(bucket, safe='')}/o"

    async def account(self) -> str:
        """Return the endpoint: names of buckets are unique in it."""
        location: str = self.system._location  # noqa: SLF001  # no public attribute has it
        return location

    async def put_object(
        self, *, Key: str, Body: bytes, IfNoneMatch: str = "", ContentMD5: str = ""
    ) -> dict[str, Any]:
        boundary = secrets.token_hex(16)
        digest = ContentMD5 or md5(Body)
        head = _part(boundary, "application/json", json.dumps({"name": Key, "md5Hash": digest}).encode())
        data = b"".join(
            (head, _part(boundary, "application/octet-stream", Body), f"--{boundary}--\r\n".encode())
        )
        answer = await self._told(
            "POST",
            f"/upload{self._objects}",
            params={"uploadType": "multipart", **_condition(IfNoneMatch)},
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            data=data,
        )
        return _stored(answer, Key, digest)

    async def get_object(self, *, Key: str, Range: str = "") -> dict[str, Any]:
        headers = {"Accept-Encoding": "identity", **({"Range": Range} if Range else {})}
        try:
            told, body = await self._ask("GET", self._path(Key), params={"alt": "media"}, headers=headers)
        except _RefusedError as error:
            if error.args[0] != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            # The range starts past the end, or the object is empty.
            return {"Body": b""}
        name = "Content-Range"
        return {"Body": body, **({"ContentRange": told[name]} if name in told else {})}

    async def head_object(self, *, Key: str) -> dict[str, Any]:
        return await self._told("GET", self._path(Key))

    async def delete_object(self, *, Key: str) -> dict[str, Any]:
        await self._ask("DELETE", self._path(Key))
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
        asked = {
            "prefix": Prefix,
            "delimiter": Delimiter,
            # It includes the object of this name.
            "startOffset": StartAfter,
            "pageToken": ContinuationToken,
        }
        params = {name: value for name, value in asked.items() if value}
        page = await self._told(
            "GET", self._objects, params={**params, "maxResults": str(MaxKeys), "fields": _FIELDS}
        )
        if not {"kind", "items", "prefixes"} & page.keys():
            raise ForeignAnswerError("expected a listing, got another answer")
        token = page.get("nextPageToken")
        return {
            "Contents": [_listed(item) for item in page.get("items", ())],
            "CommonPrefixes": [{"Prefix": folder} for folder in page.get("prefixes", ())],
            "IsTruncated": bool(token),
            "NextContinuationToken": token,
        }

    async def create_multipart_upload(self, *, Key: str, IfNoneMatch: str = "") -> dict[str, Any]:
        headers, _ = await self._ask(
            "POST",
            f"/upload{self._objects}",
            params={"uploadType": "resumable", "name": Key, **_condition(IfNoneMatch)},
            json={"name": Key},
        )
        place = urlsplit(headers.get("Location", ""))
        if not place.query:
            raise ForeignAnswerError("the answer has no address of an upload")
        # The server's own idea of its host is not followed.
        return {"UploadId": f"{place.path}?{place.query}"}

    async def upload_part(
        self, *, Key: str, UploadId: str, Body: memoryview, Start: int, Total: int | None, ContentMD5: str
    ) -> dict[str, Any]:
        """Send the bytes of `Key` from `Start`; return the end of those that the server has.

        The last ones come with the total size and the checksum of the whole object.
        """
        end = Start + len(Body)
        span = f"bytes {Start}-{end - 1}/{'*' if Total is None else Total}"
        headers, body = await self._ask(
            "PUT",
            UploadId,
            headers={
                "Content-Range": span,
                **({} if Total is None else {"x-goog-hash": f"md5={ContentMD5}"}),
            },
            data=Body,
            expected=_RESUME,
        )
        if "Range" in headers or Total is None:
            kept = int(headers.get("Range", "-").rpartition("-")[2] or -1) + 1
            if kept == Total:
                raise ForeignAnswerError("the server has every byte, but no object")
            return {"End": kept}
        _stored(_decoded(body), Key, ContentMD5)
        return {"End": end}

    async def abort_multipart_upload(self, *, Key: str, UploadId: str) -> dict[str, Any]:  # noqa: ARG002  # the address has it
        await self._ask("DELETE", UploadId, expected=_CANCELLED)
        return {}

    def answer(self, error: BaseException) -> tuple[int, str, str]:
        if isinstance(error, _RefusedError):
            status, code, reason = error.args
            return status, code, reason
        return 0, type(error).__name__, str(error) or "no answer in time"

    def is_locked(self, error: BaseException) -> bool:
        status, code, reason = self.answer(error)
        return code in _LOCKS or (status == HTTPStatus.FORBIDDEN and _HOLD.search(reason) is not None)

    def is_bucket_missing(self, error: BaseException) -> bool:
        status, code, reason = self.answer(error)
        says_so = code == _NO_BUCKET or "bucket does not exist" in reason
        return status == HTTPStatus.NOT_FOUND and says_so

    def is_ended(self, error: BaseException) -> bool:
        return self.answer(error)[0] == HTTPStatus.GONE

    def _path(self, name: str) -> str:
        return f"{self._objects}/{quote(name, safe='')}"

    async def _told(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        return _decoded((await self._ask(method, path, **arguments))[1])

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | memoryview | None = None,
        expected: int | None = None,
        **arguments: Any,
    ) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of an answer that is not an error, or has the `expected` status."""
        system = self.system
        session = await system._set_session()  # noqa: SLF001  # the public methods block
        # A silent retry would meet the object that the first request had stored.
        session._retry_connection = False  # noqa: SLF001  # there is no argument for it
        if system.credentials.credentials is not None and not system.credentials.credentials.valid:
            # This blocks.
            await asyncio.to_thread(system.credentials.maybe_refresh)
        params = system._get_params(arguments.pop("params", {}))  # noqa: SLF001  # gcsfs has no public call that sends one request
        if data is not None:
            # A file would be sent in chunks, whose total is unknown.
            headers = {**(headers or {}), "Content-Length": str(len(data))}
            arguments["data"] = sendable(data)
        async with session.request(
            method,
            self.system._location + path,  # noqa: SLF001  # gcsfs has no public call that sends one request
            params=params,
            headers=system._get_headers(headers),  # noqa: SLF001  # gcsfs has no public call that sends one request
            timeout=self._limits,
            allow_redirects=False,
            **arguments,
        ) as answer:
            body = await answer.read()
            if answer.status != expected:
                check_no_page(answer.headers, answer.status, ("x-goog-", "x-guploader-"))
                if answer.status == HTTPStatus.NOT_FOUND and path.endswith(self._objects):
                    raise _RefusedError(answer.status, _NO_BUCKET, _reason(body)[1])
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise _RefusedError(answer.status, *_reason(body))
            return answer.headers, body


def _condition(if_none_match: str) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if if_none_match else {}


def _part(boundary: str, kind: str, data: bytes) -> bytes:
    return f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + data + b"\r\n"


def _listed(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "Key": item["name"],
        "Size": int(item.get("size", 0)),
        "LastModified": datetime.fromisoformat(item["updated"]),
    }


def _decoded(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict):
            return answer
    raise ForeignAnswerError(f"expected an answer of the service, got {body[:80]!r}")


def _stored(answer: dict[str, Any], key: str, digest: str) -> dict[str, Any]:
    """Return the description of a stored object, if it is that of `key` with this checksum."""
    if answer.get("name") != key or answer.get("md5Hash", digest) != digest:
        raise ForeignAnswerError("the answer does not describe the object that was sent")
    return answer


def _reason(body: bytes) -> tuple[str, str]:
    """Return the reason and the text of an error."""
    error: Any = None
    with suppress(ForeignAnswerError):
        error = _decoded(body).get("error")
    if not isinstance(error, dict):
        return "no reason", body[:200].decode("utf-8", "replace") if error is None else str(error)
    first: dict[str, Any] = next(iter(error.get("errors") or ()), {})
    return str(first.get("reason", error.get("status", "no reason"))), str(error.get("message", ""))
