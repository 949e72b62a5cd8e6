"""A listing of a large session, kept to be used again for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from offload.record import RecordInfo
from offload.store import StoredObject

# One page of a listing holds as many; a session of no more is listed each time anew.
LARGE = 1000
# A listing serves 100 times as long as it took, so that at most 1 % of the time goes into listing.
_SERVES = 100
MAX_AGE = 600.0


class Listing(NamedTuple):
    """The records that a complete listing of a session showed, oldest first; of a ref one, none collected.

    Attributes:
        began: when the listing began, in seconds since the epoch.
        took: how many seconds it took.
        names: the records' keys without the part that all of the session begin with.
        sizes: the stored size of each, in bytes.
        times: when each was stored, in seconds since the epoch by the store's clock.
    """

    began: float
    took: float
    names: Sequence[str]
    sizes: Sequence[int]
    times: Sequence[float]

    @classmethod
    def of(cls, infos: Sequence[RecordInfo], began: float, took: float) -> Listing:
        """Return the listing that showed `infos`."""
        names = [info.key.rpartition("/")[2] for info in infos]
        return cls(began, took, names, [i.stored_bytes for i in infos], [i.created_at for i in infos])

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield what the store listed; `prefix` is what the keys of the session begin with."""
        for name, size, modified in zip(self.names, self.sizes, self.times, strict=True):
            yield StoredObject(prefix + name, size, modified)


class Query(NamedTuple):
    """Which entries of a session are asked for, newest first.

    Attributes:
        item_type: only this type; None for all.
        tool: only this tool, by its name; None for all.
        limit: how many at most.
        after: the ref that they come after; None for the first.
    """

    item_type: str | None = None
    tool: str | None = None
    limit: int = 50
    after: str | None = None


class Page(NamedTuple):
    """Entries of a session, newest first.

    Attributes:
        infos: the entries.
        start: how many match the query and come before them.
        total: how many match the query at all.
    """

    infos: Sequence[RecordInfo]
    start: int
    total: int


def is_fresh(age: float, took: float) -> bool:
    """Tell whether a listing may still be used: `age` and what it took are in seconds."""
    return 0 <= age <= min(_SERVES * took, MAX_AGE)
