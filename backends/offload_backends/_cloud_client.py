"""Shared code of the clients for Google and Azure: requests by name, and a probe by simultaneous writers.

They were tested on emulators only. So no endpoint is trusted: each prefix is probed once, and the result is
stored for later processes.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp

from offload import errors
from offload_backends._descriptor import FORMAT, Creates, Descriptor
from offload_backends._remote import Client
from offload_backends._s3_conditions import Conditions

_TRANSIENT_STATUSES = {408, 429, 500, *range(502, 600)}
_TRANSIENT_ERRORS = (aiohttp.ClientError, ConnectionError, TimeoutError)
_WRITERS = 2
_SHORTEST_SECRET = 4

T = TypeVar("T")


class ForeignAnswerError(Exception):
    """The response did not come from the service; the message describes it."""


class CloudClient(Client):
    """A client with a method for each request of the S3 API that a store sends, such as `put_object`."""

    def __init__(self, url: str, bucket: str, prefix: str, system: Any, patience: float) -> None:
        super().__init__(url, prefix, system)
        self.conditions = _Race(self)
        self.patience = patience
        self._bucket = bucket

    @abstractmethod
    def answer(self, error: BaseException) -> tuple[int, str, str]:
        """Return HTTP status, error code and text of the response; status 0 if there was none."""

    async def attempt(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await getattr(self, method)(**arguments)
        return answer

    def description(self, error: Exception) -> str:
        _, code, reason = self.answer(error)
        return f"{code}: {reason}"

    def is_transient(self, error: BaseException) -> bool:
        status = self.answer(error)[0]
        return status in _TRANSIENT_STATUSES if status else isinstance(error, _TRANSIENT_ERRORS)

    def is_unreachable(self, error: BaseException | None) -> bool:
        return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)

    def is_unsupported(self, error: errors.StoreError) -> bool:
        # A refused login may have this status too.
        is_refused = isinstance(error, errors.StorePermissionError)
        status = self.answer(error.__cause__)[0] if error.__cause__ and not is_refused else 0
        return status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED}


class _Race(Conditions):
    """The features of a server, by a probe in which several writers create one object at the same time.

    An emulator may refuse the second of two creates and accept two simultaneous ones.
    """

    async def _probe(self) -> Descriptor:
        name = f".probe-{secrets.token_hex(8)}"
        # A server that sorts by folders lists the first one first.
        names = [f"{name}/k", f"{name}-k"]
        async with AsyncExitStack() as stack:
            for each in names:
                stack.push_async_callback(self._remove, each)
            outcomes = [await self._race(each) for each in names]
            creates: Creates = next((each for each in outcomes if each != "enforced"), "enforced")
            return Descriptor(FORMAT, creates, await self._lists(name, sorted(names)))

    def _is_complete(self, described: Descriptor) -> bool:
        # The generic store writes no sort order, and tests creates one after another.
        return described.is_sorted is not None

    async def _race(self, name: str) -> Creates:
        outcomes = await asyncio.gather(*(self._create(name, n) for n in range(_WRITERS)))
        if outcomes.count("stored") > 1:
            return "ignored"
        return "unsupported" if "unsupported" in outcomes else "enforced"

    async def _create(self, name: str, number: int) -> str:
        try:
            await self._client.call("put_object", name, Body=b"%d" % number, IfNoneMatch="*")
        except errors.ExistsError:
            return "refused"
        except errors.StoreError as error:
            if not self._client.is_unsupported(error):
                raise
            return "unsupported"
        return "stored"


def check_no_page(headers: Mapping[str, str], status: int, marks: tuple[str, ...]) -> None:
    """Raise `ForeignAnswerError` for a web page or a redirect of something between here and the service.

    Headers of the service start with one of `marks`. An answer that is retried anyway is not checked.
    """
    is_signed = any(name.lower().startswith(marks) for name in headers)
    kind = headers.get("Content-Type", "")
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
    is_page = "html" in kind.lower() and not is_signed and status not in _TRANSIENT_STATUSES
    if is_page or is_redirect:
        raise ForeignAnswerError(
            f"expected an answer of the service, got HTTP {status} ({kind or 'no type'})"
        )


def opened(url: str, package: str, options: Mapping[str, Any], connect: Callable[[], T]) -> T:
    """Return what `connect` opens. Raises `ConfigError`, without their values, if it refuses the options."""
    try:
        return connect()
    except OSError as error:
        # Its text may contain the address of a request with a token in it.
        reason = type(error).__name__
    except Exception as error:  # noqa: BLE001  # the packages that look for credentials have errors of their own
        reason = f"{type(error).__name__}: {error}"
        for value in options.values():
            if isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
                reason = reason.replace(value, "(hidden)")
    # Not inside the block: the error keeps no other error, whose text may contain a secret.
    raise errors.ConfigError(f"{url}: {package} refuses the storage options: {reason}")
