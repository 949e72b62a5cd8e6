"""The error tree. Every error that the library raises is an `OffloadError`.

    OffloadError                      anything below
    ├── ConfigError                   how the library was called or set up; fix the call
    │   ├── PolicyError               a rule or threshold that cannot be meant
    │   ├── UnknownSchemeError        no backend for a URL
    │   └── MissingExtraError         a backend or command needs a package; the message names the pip command
    ├── ContextFullError              a context over its window, which must not or cannot be made shorter
    ├── MessageError                  a message that is not of the format it claims to be
    ├── InvalidKeyError               a store key outside the key grammar
    ├── NotFoundError                 no such record in this session, or no such key in this store
    │   └── ExpiredError              there was one; it was collected
    ├── CorruptError                  stored bytes are not those that were written
    ├── ExistsError                   create-only: the key is taken
    │   └── CollisionError            the key is taken by other content
    └── StoreError                    the store could not do it; the data is where it was
        ├── StorePermissionError      it refused: credentials, file modes, read-only medium
        ├── StoreMissingError         the bucket, container or parent of the root is not there
        └── StoreUnavailableError     it did not answer, or not in time; trying later may help

Categories follow what a handler would do: change the call, change the input, look elsewhere, restore a
backup, wait. `kind` is a stable code for programs; codes are only ever added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OffloadError(Exception):
    """Base of every error of this library.

    Attributes:
        kind: a stable code for programs.
        messages: of an error of `Offloader.restore`, the list as far as it could be restored; else empty.
        missing: of such an error, one `Missing` for each placeholder that stands in `messages` still.
    """

    kind: ClassVar[str] = "offload"
    messages: Sequence[Any] = ()
    missing: Sequence[Any] = ()


class ConfigError(OffloadError, ValueError):
    """The library was called or configured in a way that cannot work."""

    kind = "config"


class PolicyError(ConfigError):
    """A policy or rule holds a value that cannot be meant; the message names its path."""

    kind = "policy"


class UnknownSchemeError(ConfigError):
    """No backend, first-party or fsspec, serves the scheme of a store URL."""

    kind = "unknown_scheme"


class MissingExtraError(ConfigError, ImportError):
    """A part of the library needs a package that is not installed; the message names the command."""

    kind = "missing_extra"


class ContextFullError(OffloadError):
    """A context does not fit its window, and must not or cannot be made shorter; says what would help."""

    kind = "context_full"


class MessageError(OffloadError, ValueError):
    """A message does not have the shape of its format; the message says where and what was expected."""

    kind = "message"


class InvalidKeyError(OffloadError, ValueError):
    """A store key is outside the grammar of `offload.layout.check_key`."""

    kind = "invalid_key"


class NotFoundError(OffloadError, KeyError):
    """No such record in this session, or no such key in this store."""

    kind = "not_found"

    def __str__(self) -> str:
        """Return the plain message; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class ExpiredError(NotFoundError):
    """The record existed and was collected; the message says why and when.

    Attributes:
        reason: "expired", "quota" or "deleted".
        at: when it was marked, in seconds since the epoch by the store's clock.
    """

    kind = "expired"

    def __init__(self, message: str, reason: str = "deleted", at: float = 0.0) -> None:
        super().__init__(message, reason, at)
        self.reason = reason
        self.at = at


class CorruptError(OffloadError):
    """Stored bytes are not the bytes that were written."""

    kind = "corrupt"


class ExistsError(OffloadError, FileExistsError):
    """A create-only write met a key that is taken."""

    kind = "exists"


class CollisionError(ExistsError):
    """A record's key is taken by a record of other content."""

    kind = "collision"


class StoreError(OffloadError, OSError):
    """The store could not do what was asked; nothing that it held has changed."""

    kind = "store"


class StorePermissionError(StoreError, PermissionError):
    """The store refused: credentials, file modes, a read-only medium."""

    kind = "store_permission"


class StoreMissingError(StoreError):
    """The place that should hold the store is not there: a bucket, a container, a root that is no folder."""

    kind = "store_missing"


class StoreUnavailableError(StoreError):
    """The store did not answer, or not within the deadline; the same call may work later."""

    kind = "store_unavailable"


def result_or_error(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | OffloadError:
    """Return the result of a call, or the `OffloadError` that it raises."""
    try:
        return function(*args, **kwargs)
    except OffloadError as error:
        return error
