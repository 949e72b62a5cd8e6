"""The outcome and the progress of a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from offload import errors


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """A record, or another object of the session, that was not copied.

    Attributes:
        ref: the ref of the record; None for a journal entry or the answered calls of a gateway.
        key: its key in the source.
        error: `CorruptError` for a damaged one, `CollisionError` if its key is taken in the target, or the
            target's journal continues with other entries; `NotFoundError` if it was shared by a session that
            no longer has it.
    """

    ref: str | None
    key: str
    error: errors.OffloadError


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The outcome of a copy for each record of the session.

    Attributes:
        session: the session's name in the target.
        copied: the refs of the new records.
        already_there: the refs of the records that the target had already.
        failures: the records and other objects that were not copied.
        repaired: the keys of objects in the target that were damaged, and replaced.
    """

    session: str
    copied: list[str] = field(default_factory=list)
    already_there: list[str] = field(default_factory=list)
    failures: list[CopyFailure] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of a copy.

    Attributes:
        records: the records that were copied, or could not be.
        total: the records that the target lacked.
        bytes: the stored bytes of those in `records`.
    """

    records: int
    total: int
    bytes: int


OnProgress = Callable[[CopyProgress], object]


@contextmanager
def noting(report: CopyReport, key: str, ref: str | None = None) -> Iterator[None]:
    """Report the failure of one object and continue; the failure of a store ends the copy."""
    try:
        yield
    except errors.OffloadError as error:
        if isinstance(error, errors.StoreError) and not isinstance(error, errors.EncryptionError):
            raise
        report.failures.append(CopyFailure(ref, key, error))
