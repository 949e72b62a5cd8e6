"""Check that an HTTP response comes from an S3 service.

Proxies, firewalls and login pages of networks answer in HTTP too. Mistaken for S3, a page with status 200
would be a stored object, and one with 412 a taken key.
"""

from __future__ import annotations

import re
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.httpsession import AIOHTTPSession

from offload_backends._bucket.client import ForeignAnswerError

# Transient for any server: the request is retried, and the response is not used.
_TRANSIENT = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_PAGE_BYTES = 4096
_QUOTED_CHARS = 80
_TAG = re.compile(r"<[^<>]*>")


class S3Session(AIOHTTPSession):  # type: ignore[misc]  # its base has no types
    """A connection pool that accepts S3 responses only, without aiohttp's silent retry of a request.

    A silent retry would meet the object that the first request had stored, and report another writer's. A
    redirect would send an object's bytes to another server.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False  # noqa: SLF001  # there is no argument for it
        return SimpleNamespace(request=partial(session.request, allow_redirects=False))

    async def send(self, request: Any) -> Any:
        answer = await super().send(request)
        await _check(request, answer)
        return answer


async def _check(request: Any, answer: Any) -> None:
    status = answer.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT:
        return
    is_object = request.stream_output and status < HTTPStatus.MULTIPLE_CHOICES
    body = b"" if is_object else await answer.content
    if not _is_of_s3(request, answer, body):
        if is_object:
            # The first words are enough.
            body = await answer.raw.content.read(_PAGE_BYTES)
            answer.raw.close()
        raise ForeignAnswerError(f"expected an answer of an S3 service, got {_described(answer, body)}")


def _is_of_s3(request: Any, answer: Any, body: bytes) -> bool:
    """Return whether the response has the marks of an S3 server and is not a web page."""
    headers = answer.headers
    # Not required: some servers send no such header.
    is_signed = any(name.startswith("x-amz") for name in headers)
    is_page = "html" in headers.get("content-type", "").lower() and not is_signed
    if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
        # The response to a HEAD has no body to check; no HEAD has a condition that could fail.
        is_bare_head = request.method == "HEAD" and answer.status_code != HTTPStatus.PRECONDITION_FAILED
        return _is_error(body) if body else is_signed or (is_bare_head and not is_page)
    mark = _document_mark(request)
    if mark:
        # S3 may start a response before the request fails.
        return mark in body or _is_error(body)
    if request.method == "DELETE":
        return is_signed or answer.status_code == HTTPStatus.NO_CONTENT
    has_proof = bool(headers.get("etag")) or (request.method == "HEAD" and is_signed)
    return (has_proof and not is_page) or _is_error(body)


def _document_mark(request: Any) -> bytes:
    """Return a text that the response document must contain; empty if there is no document."""
    query = urlsplit(request.url).query
    if request.method == "POST" and query.partition("=")[0] == "delete":
        return b"DeleteResult"
    is_of_upload = "uploadId=" in query
    if request.method == "POST" and is_of_upload:
        return b"ETag>"
    if request.method == "POST" or (request.method == "GET" and is_of_upload):
        return b"UploadId>"
    return b"ListBucketResult" if "list-type=" in query else b""


def _is_error(body: bytes) -> bool:
    return b"<Error" in body and b"<Code>" in body


def _described(answer: Any, page: bytes) -> str:
    """Describe a response: status, content type, server, ETag and first words."""
    kind = answer.headers.get("content-type", "no content type")
    server = answer.headers.get("server", "unknown")
    proof = "an ETag" if answer.headers.get("etag") else "no ETag"
    words = " ".join(_TAG.sub(" ", page[:_PAGE_BYTES].decode("utf-8", "replace")).split())
    summary = f"HTTP {answer.status_code} ({kind}, server {server[:_QUOTED_CHARS]}, {proof})"
    return f"{summary}: {words[:_QUOTED_CHARS]!r}" if words else f"{summary}, without text"
