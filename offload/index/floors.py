"""The floor of a session: the lowest generation that a new record of it may have, 1 without one.

gc raises it in a session whose records are all deleted. Later it deletes their keys, although a stalled gc
may still overwrite or delete one: no writer stores a record under it again. For this a writer has to know the
floor, from a listing that is at most a day old when its record is stored; gc waits seven times as long before
it deletes a key below a floor. `offload/FORMAT.md` has the races.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from offload.layout import FLOOR
from offload.store import OffloadStore, StoredObject

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
    """

    def __init__(self, store: OffloadStore, part: str) -> None:
        self.lowest = 1
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
        """Note the floor in a listing that began at a time of `clocks`."""
        self.lowest = max([self.lowest, *floors_in((stored.key, stored.modified) for stored in objects)])
        self._listed_at = began

    def learn(self) -> None:
        """List the floor, unless it is known. Raises `StoreError`."""
        if not self.is_known:
            began = clocks()
            self.note(self._store.keys(f"{FLOOR.prefix(self._part)}floor~"), began)


def clocks() -> tuple[float, ...]:
    """Return the time by the clocks of this machine."""
    return time.monotonic(), time.time()
