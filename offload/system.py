"""Facts of an operating system that not every one has."""

from __future__ import annotations

import os

# Without user ids, as on Windows, `stat` has no owner and no mode that says who may write.
HAS_USERS = hasattr(os, "geteuid")


def is_own(info: os.stat_result) -> bool:
    """Return whether this user owns a file or folder; always, if the system has no user ids."""
    return not HAS_USERS or info.st_uid == os.geteuid()
