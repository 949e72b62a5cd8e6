"""What workers of other processes do in the tests of jobs: functions that they can import."""

from __future__ import annotations

import os
import signal

from offload.storage.store import OffloadStore


def size_of(store: OffloadStore, key: str) -> int:
    """Return the size of an object; the key "kill" kills the process, "wrong" raises a foreign error."""
    if key == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if key == "wrong":
        raise ZeroDivisionError("a fault of the work")
    return len(store.get(key))
