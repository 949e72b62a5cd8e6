"""Shared code of the clients for Google and Azure: requests by name, and options that are refused."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

import aiohttp

from offload import errors
from offload_backends._bucket.client import TRANSIENT_STATUSES, Client, ForeignAnswerError

_SHORTEST_SECRET = 4

T = TypeVar("T")


class CloudClient(Client, ABC):
    """A client with a method for each request of the S3 API that a store sends, such as `put_object`."""

    transient_errors: ClassVar[tuple[type[Exception], ...]] = (
        aiohttp.ClientError,
        ConnectionError,
        TimeoutError,
    )

    def __init__(self, url: str, bucket: str, prefix: str, system: Any, patience: float) -> None:
        super().__init__(url, prefix, system)
        self.patience = patience
        self._bucket = bucket

    async def attempt(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await getattr(self, method)(**arguments)
        return answer

    def is_unreachable(self, error: BaseException | None) -> bool:
        return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def check_no_page(headers: Mapping[str, str], status: int, marks: tuple[str, ...]) -> None:
    """Raise `ForeignAnswerError` for a web page or a redirect of something between here and the service.

    Headers of the service start with one of `marks`. An answer that is retried anyway is not checked.
    """
    is_signed = any(name.lower().startswith(marks) for name in headers)
    kind = headers.get("Content-Type", "")
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
    is_page = "html" in kind.lower() and not is_signed and status not in TRANSIENT_STATUSES
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
