"""The error tree. Every error that the library raises is an `OffloadError`.

The classes follow what a handler would do: change the call, change the input, look elsewhere, restore a
backup, wait. `kind` is a stable code for programs; codes are only ever added.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# A message that shares so many characters in a row with a content, about, or is longer, is not quoted.
_QUOTED_CHARS, _MOST_SAID_CHARS = 8, 400


class OffloadError(Exception):
    """Base of every error of this library.

    Attributes:
        kind: a stable code for programs; a subclass without one inherits it.
        messages: for an error of `Offloader.restore`, the partly restored list; otherwise empty.
        missing: for such an error, one `Missing` per placeholder that is still in `messages`.
    """

    kind: ClassVar[str] = "offload"
    messages: Sequence[Any] = ()
    missing: Sequence[Any] = ()

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:
            cls.kind = kind


class ConfigError(OffloadError, ValueError, kind="config"):
    """An argument or a setting is invalid; the message names it and the fix."""


class PolicyError(ConfigError, kind="policy"):
    """A policy or rule has an invalid value; the message names the field."""


class UnknownSchemeError(ConfigError, kind="unknown_scheme"):
    """No backend, first-party or fsspec, serves the scheme of a store URL."""


class MissingExtraError(ConfigError, ImportError, kind="missing_extra"):
    """A package that is not installed is needed; the message has the command that installs it."""


class HookTimeoutError(TimeoutError):
    """An async hook did not return within its time limit; the error of its item has this as the cause."""


class ContextFullError(OffloadError, kind="context_full"):
    """A context exceeds its window and cannot be made smaller; the message names a fix."""


class RefusedError(ContextFullError, kind="refused"):
    """The user refused a compaction; shorten the context by hand, or start a new session."""


class MessageError(OffloadError, ValueError, kind="message"):
    """A message does not have the shape of its format; the error says where and what was expected."""


class InvalidKeyError(OffloadError, ValueError, kind="invalid_key"):
    """A store key does not match the grammar of `offload.check_key`."""


class NotFoundError(OffloadError, KeyError, kind="not_found"):
    """No such record in this session, or no such key in this store."""

    def __str__(self) -> str:
        """Return the plain message; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class ExpiredError(NotFoundError, kind="expired"):
    """The record existed and was deleted; the message says why and when.

    Attributes:
        reason: "expired", "quota" or "deleted".
        at: time of the deletion mark, in seconds since the epoch by the store's clock.
    """

    def __init__(self, message: str, reason: str = "deleted", at: float = 0.0) -> None:
        super().__init__(message, reason, at)
        self.reason = reason
        self.at = at


class CorruptError(OffloadError, kind="corrupt"):
    """Stored bytes differ from those that were written."""


class ReferenceRefusedError(OffloadError, kind="reference_refused"):
    """A reference in the arguments of a model's call was refused; the message is for the model."""


class ExistsError(OffloadError, FileExistsError, kind="exists"):
    """The key of a create-only write is taken."""


class ThinkingRemovedError(OffloadError, kind="thinking_removed"):
    """A provider refused signed thinking, so it was removed and stored; no failure, but worth knowing."""


class CollisionError(ExistsError, kind="collision"):
    """The key of a record is taken by a record with other content."""


class StoreError(OffloadError, OSError, kind="store"):
    """The store failed to do what was requested; its data is unchanged."""


class StorePermissionError(StoreError, PermissionError, kind="store_permission"):
    """The store refused access: wrong credentials or file modes, or a read-only medium."""


class EncryptionError(ConfigError, StorePermissionError, kind="encrypted"):
    """An object does not fit the key of the store; it is not damaged.

    It is encrypted and the store was opened without a key or with another one, or it was stored in clear and
    the store has a key. The message says which.
    """


class StoreMissingError(StoreError, kind="store_missing"):
    """The bucket or container of the store does not exist, or its root is not a folder."""


class StoreUnavailableError(StoreError, kind="store_unavailable"):
    """The store did not respond within the deadline; the same call may work later."""


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Raise `MissingExtraError` if an import in the block fails: it needs the extra `name`."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{error}; install it with: pip install 'offload[{name}]'") from error


def failure(subject: str, error: Exception, content: str | None = "") -> OffloadError:
    """Return an `OffloadError` for an exception of a hook or other foreign code, with it as the cause.

    It quotes the exception, unless that may quote `content`, what the code was given: then it has the
    place instead. With None nothing is quoted that the library did not say.
    """
    said = _said(error)
    is_ours = isinstance(error, ConfigError | HookTimeoutError)
    is_quoted = bool(said) and (is_ours or (content is not None and not _quotes(said, content)))
    failed = OffloadError(f"{subject} {type(error).__name__}{f': {said}' if is_quoted else _place(error)}")
    failed.__cause__ = error
    return failed


def unexpected(error: Exception) -> OffloadError:
    """Return `error` as an error of this library; one that the library's own code raised is not quoted."""
    if isinstance(error, OffloadError):
        return error
    is_ours = _frame(error)[0].split(".")[0] == __name__.split(".")[0]
    return failure("unexpected", error, None if is_ours else "")


def result_or_error(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | OffloadError:
    """Return the result of a call, or the error that it raises, as one of this library."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 # one of many calls fails alone
        return unexpected(error)


def _said(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 # a foreign exception may raise anything
        return ""


def _quotes(said: str, content: str) -> bool:
    """Return whether a message has a part of `content`, or is long enough to hide one."""
    starts = range(0, len(said) - _QUOTED_CHARS + 1, _QUOTED_CHARS // 2)
    parts = (said[at : at + _QUOTED_CHARS] for at in starts)
    return bool(content) and (len(said) > _MOST_SAID_CHARS or any(part in content for part in parts))


def _place(error: Exception) -> str:
    """Return where an exception was raised, for the end of a sentence, without a path of this machine."""
    module, function, line = _frame(error)
    return f" in {module}.{function}, line {line}" if line else ""


def _frame(error: Exception) -> tuple[str, str, int]:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "", "", 0
    frame = trace.tb_frame
    return str(frame.f_globals.get("__name__", "")), frame.f_code.co_name, trace.tb_lineno


def check_messages(messages: object) -> None:
    """Raise `MessageError` unless `messages` is a list or another sequence, other than a text."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise MessageError(f"expected a list of messages, got {type(messages).__name__}")


def check_path(argument: str, value: object) -> None:
    """Raise `ConfigError` unless the value of an argument is a path, as text or as an object."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{argument} must be a path, got {type(value).__name__}")


def check_callable(argument: str, value: object, *, is_required: bool = False) -> None:
    """Raise `ConfigError` unless the value of an argument is a function, or None if it is not required."""
    if (is_required or value is not None) and not callable(value):
        raise ConfigError(f"{argument} must be a function, got {value!r:.60}")


def check_texts(**arguments: object) -> None:
    """Raise `ConfigError` unless the value of each argument is a text, or None."""
    for name, value in arguments.items():
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} must be a str or None, got {type(value).__name__}")


def check_kind(argument: str, value: object, kind: type, *, is_required: bool = False) -> None:
    """Raise `ConfigError` unless the value of an argument is a `kind`, or None if it is not required."""
    if (is_required or value is not None) and not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise ConfigError(f"{argument} must be {article} {kind.__name__}, got {type(value).__name__}")


def check_number(argument: str, value: object, least: float, *, is_whole: bool = True) -> None:
    """Raise `ConfigError` unless the value of an argument is a number of at least `least`."""
    kinds, kind = ((int,), "an integer") if is_whole else ((int, float), "a number")
    if type(value) not in kinds or not value >= least:  # type: ignore[operator] # it is a number
        raise ConfigError(f"{argument} must be {kind} of at least {least}, got {value!r:.60}")


def check_choice(argument: str, value: object, choices: Iterable[str]) -> None:
    """Raise `ConfigError` unless the value of an argument is one of `choices`."""
    allowed = tuple(choices)
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise ConfigError(f"{argument} must be one of {', '.join(allowed)}, got {value!r:.60}{hint}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of an error about a mistyped name: the known name that is most like it, if any is."""
    from difflib import get_close_matches  # noqa: PLC0415 # only an error pays for it

    alike = get_close_matches(name, known, n=1) if isinstance(name, str) else []
    return f"; did you mean {alike[0]!r:.80}?" if alike else ""
