"""One gc: the store, the rules, the time and the report that each of its steps needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from offload.errors import ConfigError, StoreError
from offload.layout import CLOCK
from offload.policy import Retention
from offload.retention._report import GcReport
from offload.retention.marks import UNMARKED, Marks, read_marks
from offload.store import OffloadStore

# A probe of the clock, a mark of a fork or of a closed session that is older was left by a killed process.
ABANDONED_SECONDS = 3600


@dataclass(slots=True)
class Run:
    """One gc or deletion; its writes may be repeated, interrupted, or done by several processes at once.

    Attributes:
        now: the time by the store's clock, 0 for a deletion, which needs none.
        all_marks: the marks of all sessions; None if they may change, so that those of a session are listed.
        readers: by the key part of a session, the names of its forks by the record that they read, None
            without a fork.
    """

    store: OffloadStore
    report: GcReport
    retention: Retention = field(default_factory=Retention)
    now: float = 0.0
    all_marks: Mapping[str, Marks] | None = None
    readers: dict[str, dict[str, set[str]] | None] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether this run deletes, and does not only report."""
        return not self.report.is_dry_run

    def is_over(self, began: float) -> bool:
        """Return whether a grace period that began at a time is over."""
        return not self.retention.grace or self.now - began >= self.retention.grace

    def marks_of(self, part: str) -> Marks:
        """Return the marks of a session."""
        return read_marks(self.store, part) if self.all_marks is None else self.all_marks.get(part, UNMARKED)


def store_time(store: OffloadStore) -> float:
    """Return the time by the clock of `store`, from a fresh object.

    Raises `ConfigError` if it has none, and `StoreError` after a stall of an hour between its operations.
    """
    key = CLOCK.key(digits=secrets.token_hex(8))
    store.put(key, b"")
    probes = {stored.key: stored.modified for stored in store.keys(CLOCK.prefix())}
    if key not in probes:
        raise StoreError(f"another gc deleted the probe of the clock of {store.url}; run gc again")
    now = probes[key]
    for probe, at in probes.items():
        if probe == key or at < now - ABANDONED_SECONDS:
            store.delete(probe)
    check_times(store, [now])
    return now


def check_times(store: OffloadStore, times: Iterable[float]) -> None:
    """Raise `ConfigError` if one of some times of objects is none."""
    if any(modified <= 0 for modified in times):
        raise ConfigError(f"{store.url} reports no modification times of its objects, so gc cannot run on it")
