"""The reasons why a record cannot be read."""

from __future__ import annotations

from offload.errors import CorruptError, NotFoundError, OffloadError

FAILED, DAMAGED, DELETED = "the store failed", "damaged", "deleted"
# These may have passed by the next search: a record that another session shares can be undeleted.
PASSING = (FAILED, DELETED)


def reason_of(error: OffloadError) -> str:
    """Return the reason for the error of a read."""
    if isinstance(error, CorruptError):
        return DAMAGED
    return DELETED if isinstance(error, NotFoundError) else FAILED
