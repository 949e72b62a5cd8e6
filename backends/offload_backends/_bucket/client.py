"""Requests to one bucket or container of a remote service: the deadline, the one layer of retries, ranges.

The requests have the names and arguments of the S3 API, which every service of this kind can follow; the
client of another service translates them. A client runs on fsspec's own loop.
"""

from __future__ import annotations

import asyncio
import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

import fsspec.asyn
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from offload import errors
from offload_backends._bucket import systems

# A call ends within DEADLINE seconds plus the time of its bytes at SLOWEST bytes a second. No attempt starts
# after LAST_START, so that the last one can end with its error. An endpoint that refuses connections is
# retried for a shorter time: it is most likely the wrong one.
DEADLINE = 30.0
LAST_START = 25.0
UNREACHABLE_DEADLINE = 3.0
SLOWEST = 1024 * 1024
CONNECTIONS = 64
# The limits of one attempt, in seconds.
CONNECT_TIMEOUT, READ_TIMEOUT = 3, 10
# The size of an object is not known before it is read; the deadline allows for this much.
_ASSUMED_SIZE = 64 * 1024**2
# A smaller body usually fits into the buffer of a socket.
_LARGE_BODY = 256 * 1024
# A 501 is permanent.
TRANSIENT_STATUSES = frozenset({408, 429, 500, *range(502, 600)})
_LOCKED = "; a retention policy, a hold or a lock forbids deleting or replacing the object"

T = TypeVar("T")


class ForeignAnswerError(Exception):
    """The response did not come from the service, or lacks the proof; the message describes it."""


class Client(ABC):
    """Requests to the keys below `prefix`, over the connections of `system`, a file system of fsspec."""

    # The advice for an error, by its type.
    fixes: ClassVar[dict[type[errors.OffloadError], str]] = {
        errors.ExistsError: "; the key is taken",
        errors.StoreMissingError: "; the bucket must exist before the store is used",
        errors.StoreUnavailableError: "; check endpoint_url and the network, or try later",
    }
    # Answers, and errors without an answer, after which the same request may succeed.
    transient_statuses: ClassVar[frozenset[int]] = TRANSIENT_STATUSES | {HTTPStatus.CONFLICT}
    transient_codes: ClassVar[frozenset[str]] = frozenset()
    transient_errors: ClassVar[tuple[type[Exception], ...]]
    # Errors and codes of refused credentials.
    login_errors: ClassVar[tuple[type[Exception], ...]]
    login_codes: ClassVar[frozenset[str]] = frozenset()
    # The time that the user allows for one attempt, in seconds; the deadline is not shorter.
    patience = 0.0

    def __init__(self, url: str, prefix: str, system: Any) -> None:
        self.prefix = prefix
        self.system = system
        self.url = url

    @abstractmethod
    async def account(self) -> str:
        """Return the configured endpoint and account, without a request and without a secret."""

    @abstractmethod
    async def attempt(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Send one request; raise what the connection raises."""

    @abstractmethod
    def answer(self, error: BaseException) -> tuple[int, str, str]:
        """Return HTTP status, error code and text of the response; status 0 if there was none."""

    @abstractmethod
    def is_bucket_missing(self, error: BaseException) -> bool:
        """Return whether the response says that there is no such bucket."""

    @abstractmethod
    def is_locked(self, error: BaseException) -> bool:
        """Return whether a retention policy, a hold or a lock keeps the object as it is."""

    @abstractmethod
    def is_unreachable(self, error: BaseException | None) -> bool:
        """Return whether no connection was made."""

    def is_unsupported(self, error: errors.StoreError) -> bool:
        """Return whether the server does not support the request."""
        # A refused login may have this status too.
        if type(error) is not errors.StoreError or error.__cause__ is None:
            return False
        return self.answer(error.__cause__)[0] in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED}

    async def is_known(self) -> bool:
        """Return whether the service is known to refuse taken keys and to sort, so that it needs no probe."""
        return False

    @abstractmethod
    def is_ended(self, error: BaseException) -> bool:
        """Return whether the upload of the request is unknown to the server: completed or aborted."""

    def is_taken(self, error: BaseException) -> bool:
        """Return whether the condition of a create was not met."""
        return self.answer(error)[0] == HTTPStatus.PRECONDITION_FAILED

    def is_transient(self, error: BaseException) -> bool:
        """Return whether the same request may succeed later."""
        status, code, _ = self.answer(error)
        if not status:
            return isinstance(error, self.transient_errors)
        may_pass = status in self.transient_statuses or code in self.transient_codes
        return may_pass and not self.is_locked(error)

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
                f"{self.url}: must not be called on fsspec's thread; call from another thread"
            )
        return asyncio.run_coroutine_threadsafe(function(*args), self.system.loop)

    def retrying(self) -> AsyncRetrying:
        """Return the retries of one call: transient errors, with full jitter, until the deadline."""
        return AsyncRetrying(
            retry=retry_if_exception(self.is_transient),
            wait=wait_random_exponential(multiplier=0.05, max=5),
            stop=self._is_over,
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
        """Send a request of the S3 API until it succeeds, fails permanently or the deadline has passed.

        `key` is a key of the store or, for a listing, a prefix; the call moves at most `size` bytes. A caller
        that needs the number of attempts afterwards passes the retries. The body of the response is bytes.
        """
        arguments["Prefix" if method == "list_objects_v2" else "Key"] = self.prefix + key
        with self.mapped_errors(key, is_create="IfNoneMatch" in arguments):
            async with self.deadline(size):
                return await (retrying or self.retrying())(self.attempt, method, arguments)

    def deadline(self, size: int = 0) -> asyncio.Timeout:
        """Return the time limit of one call, which moves at most `size` bytes."""
        return asyncio.timeout(max(DEADLINE, self.patience) + size / SLOWEST)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them, as `OffloadStore.get` does."""
        size = _ASSUMED_SIZE if end is None else end - start
        answer = await self.call("get_object", key, size=size, **_range(start, end))
        body: bytes = answer["Body"]
        if start < 0 and not body and "ContentRange" not in answer:
            # Some servers refuse a suffix that is longer than the object.
            return (await self.get(key))[start:]
        if "ContentRange" not in answer:
            # The whole object: requested, or sent by a server without ranges.
            return body[start:end]
        return body if end is None else body[: max(0, end - start)]

    @contextmanager
    def mapped_errors(self, subject: str, *, is_create: bool = False) -> Iterator[None]:
        """Raise errors of the library for those of the connection; they name `subject`."""
        try:
            yield
        except errors.OffloadError:
            raise
        except Exception as error:
            meaning, fix = self._meaning_and_fix(error, is_create=is_create)
            if meaning is errors.StorePermissionError:
                # A store that is opened later connects again, with new credentials.
                systems.forget(self.system)
            place = f"{self.url}: {subject!r}" if subject else self.url
            _, code, reason = self.answer(error)
            raise meaning(f"{place}: {f'{code}: {reason}'.removesuffix('.')}{fix}") from error

    def _meaning_and_fix(self, error: Exception, *, is_create: bool) -> tuple[type[errors.OffloadError], str]:
        if self.is_locked(error) and not is_create:
            return errors.StoreError, _LOCKED
        # Some services look for a lock before they compare the condition of a create: the key is taken.
        meaning = errors.ExistsError if self.is_locked(error) else self._meaning(error)
        return meaning, self.fixes.get(meaning, "")

    def _meaning(self, error: Exception) -> type[errors.OffloadError]:
        tests: dict[type[errors.OffloadError], Callable[[Exception], bool]] = {
            errors.ExistsError: self.is_taken,
            errors.StoreMissingError: self.is_bucket_missing,
            errors.StoreUnavailableError: self._may_pass,
            errors.NotFoundError: lambda error: self.answer(error)[0] == HTTPStatus.NOT_FOUND,
            errors.StorePermissionError: self._is_refused,
        }
        return next((kind for kind, applies in tests.items() if applies(error)), errors.StoreError)

    def _may_pass(self, error: Exception) -> bool:
        return self.is_transient(error) or isinstance(error, ForeignAnswerError) or self.is_ended(error)

    def _is_refused(self, error: Exception) -> bool:
        status, code, _ = self.answer(error)
        is_refused = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} or code in self.login_codes
        return is_refused or isinstance(error, self.login_errors)

    def _is_over(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        limit = UNREACHABLE_DEADLINE if self.is_unreachable(error) else LAST_START
        return (state.seconds_since_start or 0.0) + state.upcoming_sleep >= limit


class _Body(io.RawIOBase):
    """The body of a request as a file, without a copy of it.

    A socket without room copies bytes as a whole into its buffer, but reads a file piece by piece.
    """

    def __init__(self, data: bytes | memoryview) -> None:
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


def sendable(data: bytes | memoryview) -> bytes | memoryview | _Body:
    """Return the body of a request: a large one as a file, which serves one attempt."""
    return _Body(data) if len(data) > _LARGE_BODY else data


def _range(start: int, end: int | None) -> dict[str, Any]:
    if start < 0:
        return {"Range": f"bytes={start}"}
    if end is None:
        return {"Range": f"bytes={start}-"} if start else {}
    # HTTP has no empty range; one byte is requested and dropped.
    return {"Range": f"bytes={start}-{max(end - 1, start)}"}
