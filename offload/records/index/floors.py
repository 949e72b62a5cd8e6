"""The floor of a session: the lowest generation that a new record of it may have, 1 without one.

gc raises it in a session whose records are all deleted. Later it deletes their keys, although a stalled gc
may still overwrite or delete one: no writer stores a record under it again. For this a writer has to know the
floor, from a listing that is at most a day old when its record is stored; gc waits seven times as long before
it deletes a key below a floor. `offload/FORMAT.md` has the races.

The same listing shows the marks of the sessions that drew refs of records of this one: a writer has to know
them too, since the same item has the same ref.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import takewhile

from offload.storage.layout import BRANCH, FLOOR, FOREIGN
from offload.storage.store import OffloadStore, StoredObject

# How long a writer relies on a listing, and how long gc waits after each step.
LEASE_SECONDS = 86_400
SETTLED_SECONDS = 7 * LEASE_SECONDS


def floors_in(times: Iterable[tuple[str, float]]) -> dict[int, float]:
    """Return the times of the marks of a floor among the times of objects by key, by the generation."""
    matches = ((FLOOR.match(key), at) for key, at in times if "/floor~" in key)
    return {int(match["generation"]): at for match, at in matches if match}


class Floor:
    """The floor of the session with a key part, as one process knows it.

    Attributes:
        lowest: the lowest generation of a new record that a listing showed.
        origins: the keys of the branch and of the marks of other sessions that drew refs of this one.
    """

    def __init__(self, store: OffloadStore, part: str) -> None:
        self.lowest = 1
        self.origins: set[str] = set()
        self._store = store
        self._part = part
        self._listed_at: tuple[float, ...] | None = None

    @property
    def is_known(self) -> bool:
        """Whether a listing that began in the last day showed the floor.

        The larger of the times by two clocks counts: one may stop while the machine sleeps, the other may be
        set back.
        """
        if self._listed_at is None:
            return False
        passed = (now - then for now, then in zip(clocks(), self._listed_at, strict=True))
        return max(passed) < LEASE_SECONDS

    def note(self, objects: Iterable[StoredObject], began: tuple[float, ...]) -> None:
        """Note the marks in a listing that began at a time of `clocks`."""
        marks = [(one.key, one.modified) for one in objects if "/f" in one.key]
        self.lowest = max([self.lowest, *floors_in(marks)])
        self.origins.update(key for key, _ in marks if BRANCH.match(key) or FOREIGN.match(key))
        self._listed_at = began

    def learn(self) -> None:
        """List the marks, unless they are known. Raises `StoreError`."""
        if not self.is_known:
            began, prefix = clocks(), FLOOR.prefix(self._part)
            # Of the records, one in forty has a ref before `from`.
            listed = self._store.keys(f"{prefix}f")
            self.note(takewhile(lambda stored: stored.key < f"{prefix}fron", listed), began)


def clocks() -> tuple[float, ...]:
    """Return the time by the clocks of this machine."""
    return time.monotonic(), time.time()
