"""Durability checks on a system-call trace, stricter than any file system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_NAMED = re.compile(
    r"(?:mkdirat\(|linkat\(.*, |renameat2\(.*, )"
    r'\d+<(?P<folder>[^>]+)>, "(?P<name>[^"]+)".*\) += (?:0|-1 EEXIST)'
)
_REMOVED = re.compile(r'unlinkat\(\d+<(?P<folder>[^>]+)>, "(?P<name>[^"]+)".*\) += 0')
_SYNCED = re.compile(r"fsync\(\d+<(?P<folder>[^>]+)>\) += 0")
_FAILED_SYNC = re.compile(r"fsync\((?P<handle>\d+)<.* = -1 ")


def names_not_synced(trace: Iterable[str]) -> set[str]:
    """Return every path that was named, or found taken, with no fsync of its folder after that."""
    pending: set[str] = set()
    for line in trace:
        if named := _NAMED.match(line):
            pending.add(f"{named['folder']}/{named['name']}")
        elif removed := _REMOVED.match(line):
            pending.discard(f"{removed['folder']}/{removed['name']}")
        elif synced := _SYNCED.match(line):
            pending = {path for path in pending if str(Path(path).parent) != synced["folder"]}
    return pending


def syncs_tried_again(trace: Sequence[str]) -> list[str]:
    """Return the calls that sync a handle whose sync failed: they succeed, and the bytes are lost."""
    found = []
    for start, line in enumerate(trace):
        if failed := _FAILED_SYNC.match(line):
            rest = trace[start + 1 :]
            closed = next(i for i, later in enumerate(rest) if later.startswith(f"close({failed['handle']}<"))
            found += [later for later in rest[:closed] if later.startswith(f"fsync({failed['handle']}<")]
    return found
