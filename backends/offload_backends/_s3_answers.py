"""Whether an answer is that of an S3 service.

Between a client and its bucket stand proxies, firewalls and the login pages of networks, and each of them
answers in HTTP. Taken for S3's, a page with status 200 is a stored object, one with 412 a key that is taken.
"""

from __future__ import annotations

import re
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.httpsession import AIOHTTPSession

# Whoever says so, it may pass: these are asked again, and nothing is made of them.
_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_LOOKED_AT = 4096
_SHOWN = 80
_TAG = re.compile(r"<[^<>]*>")


class ForeignAnswerError(Exception):
    """The answer came from something else than an S3 service, or without what proves it; says from what."""


class S3Session(AIOHTTPSession):  # type: ignore[misc]  # its base has no types
    """A connection pool without aiohttp's own silent repetition of a request, which takes S3's answers only.

    A repetition would meet an object that the first sending had stored, and call it somebody else's. A
    redirect would take an object's bytes where nobody sent them.
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
    """Raise `ForeignAnswerError` if `answer` shows that no S3 service gave it.

    Args:
        request: a request of aiobotocore, as it was sent.
        answer: aiobotocore's answer to it; its body is read, unless it is the object's.
    """
    status = answer.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
        return
    is_object = request.stream_output and status < HTTPStatus.MULTIPLE_CHOICES
    body = b"" if is_object else await answer.content
    if not _is_of_s3(request, answer, body):
        page = await _beginning(answer) if is_object else body
        raise ForeignAnswerError(f"no S3 service answered, but {_described(answer, page)}")


def _is_of_s3(request: Any, answer: Any, body: bytes) -> bool:
    """Return whether the answer has what every S3 server sends, and no page of something else."""
    headers = answer.headers
    # Not required of all: some servers send no header of this kind.
    is_signed = any(name.startswith("x-amz") for name in headers)
    is_page = "html" in headers.get("content-type", "").lower() and not is_signed
    if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
        # What answers a HEAD has no body to tell by.
        return _is_error(body) if body else is_signed or (request.method == "HEAD" and not is_page)
    wanted = _wanted(request)
    if wanted:
        # S3 may begin its answer before it knows that it fails.
        return wanted in body or _is_error(body)
    if request.method == "DELETE":
        return is_signed or answer.status_code == HTTPStatus.NO_CONTENT
    has_proof = bool(headers.get("etag")) or (request.method == "HEAD" and is_signed)
    return (has_proof and not is_page) or _is_error(body)


def _wanted(request: Any) -> bytes:
    """Return what stands in the document that answers a request; empty if none does."""
    query = urlsplit(request.url).query
    if request.method == "POST":
        return b"ETag>" if "uploadId=" in query else b"UploadId>"
    return b"ListBucketResult" if "list-type=" in query else b""


def _is_error(body: bytes) -> bool:
    return b"<Error" in body and b"<Code>" in body


async def _beginning(answer: Any) -> bytes:
    """Return the first bytes of a body that has not been read, and give up the rest."""
    beginning: bytes = await answer.raw.content.read(_LOOKED_AT)
    answer.raw.close()
    return beginning


def _described(answer: Any, page: bytes) -> str:
    """Return what answered: status, kind and server, and the first words that it says."""
    kind = answer.headers.get("content-type", "no content type")
    server = answer.headers.get("server", "unknown")
    proof = "an ETag" if answer.headers.get("etag") else "no ETag"
    words = " ".join(_TAG.sub(" ", page[:_LOOKED_AT].decode("utf-8", "replace")).split())
    said = f"HTTP {answer.status_code} ({kind}, server {server[:_SHOWN]}, {proof})"
    return f"{said}: {words[:_SHOWN]!r}" if words else f"{said} with no text"
