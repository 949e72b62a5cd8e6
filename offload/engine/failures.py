"""The errors of one call: each is reported once, and raised if the caller asked for that."""

from __future__ import annotations

from offload.errors import MessageError, OffloadError, StoreError
from offload.events import Observer, failure


class AboveCeilingError(OffloadError):
    """An item or a turn is kept above `OffloadPolicy.max_view_tokens`."""


class Failures:
    """Collects the `errors` of one call of `offload`; with `raises`, each is raised once it is reported."""

    def __init__(self, observer: Observer, *, raises: bool) -> None:
        self.errors: list[OffloadError] = []
        self._observer = observer
        self._raises = raises

    def report(self, error: OffloadError) -> None:
        """Report an error; a store or a hook that fails for many items is reported once."""
        if any(_is_repeated(error, known) for known in self.errors):
            return
        self.note(error)
        if self._raises:
            raise error

    def note_index(self, error: OffloadError) -> None:
        """Report that an index file could not be updated; never raised, since every item is stored."""
        self.errors.append(error)
        self._observer.index_failed(error)

    def note(self, error: OffloadError) -> None:
        """Report an error that is never raised."""
        self.errors.append(error)
        self._observer.failed(error)


def malformed(error: Exception, index: int) -> MessageError:
    """Return the error for a message that its adapter could not handle."""
    if isinstance(error, MessageError):
        return error
    wrapped = MessageError(f"messages[{index}]: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def unexpected(error: Exception) -> OffloadError:
    """Return `error` as an error of this library."""
    return error if isinstance(error, OffloadError) else failure("unexpected", error)


def _is_repeated(error: OffloadError, known: OffloadError) -> bool:
    if isinstance(error, StoreError):
        return isinstance(known, StoreError)
    return type(error) is type(known) is OffloadError and str(error) == str(known)
