"""Facts of an operating system that not every one has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Without user ids, as on Windows, `stat` has no owner and no mode that says who may write.
HAS_USERS = hasattr(os, "geteuid")
# Windows' errors while another program has the file open: access denied, sharing violation, lock violation.
# `os.open` reports none of these numbers but None; the errors of other systems have no `winerror`.
_HELD_ERRORS = (None, 5, 32, 33)
_HELD_SECONDS = 2.0
_LONGEST_WAIT = 0.05


def is_own(info: os.stat_result) -> bool:
    """Return whether this user owns a file or folder; always, if the system has no user ids."""
    return not HAS_USERS or info.st_uid == os.geteuid()


def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a call, repeated for up to two seconds while another program has the file open."""
    deadline = time.monotonic() + _HELD_SECONDS
    wait = 0.001
    while True:
        try:
            return call(*args, **kwargs)
        except PermissionError as error:
            if getattr(error, "winerror", 0) not in _HELD_ERRORS or time.monotonic() > deadline:
                raise
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
