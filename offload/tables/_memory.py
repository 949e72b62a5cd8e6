"""The memory of this process, by the first of the ways to ask for it that the system has."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STATM = "/proc/self/statm"
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@contextmanager
def memory_meter() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the memory of this process in bytes.

    Without /proc it is the peak so far, on Windows the committed memory. A system that has none of these
    always returns 0.

    SQLite asks every thousand steps, so the file is opened once.
    """
    try:
        page, read = os.sysconf("SC_PAGE_SIZE"), os.pread
        statm = os.open(_STATM, os.O_RDONLY)
    except (AttributeError, OSError):
        yield _peak_meter() or _commit_meter() or int
        return
    try:
        yield lambda: int(read(statm, 64, 0).split()[1]) * page
    finally:
        os.close(statm)


def _peak_meter() -> Callable[[], int] | None:
    try:
        import resource  # noqa: PLC0415 # absent on Windows
    except ImportError:
        return None
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of Windows."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        ("working_sets_and_pools", ctypes.c_size_t * 6),
        ("committed", ctypes.c_size_t),
        ("peak_committed", ctypes.c_size_t),
    )


def _commit_meter() -> Callable[[], int] | None:
    try:
        kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
        current, ask = kernel.GetCurrentProcess, kernel.K32GetProcessMemoryInfo
    except (AttributeError, OSError):
        return None
    current.restype = ctypes.c_void_p
    ask.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    counters = _Counters(size=ctypes.sizeof(_Counters))

    def committed() -> int:
        ask(current(), ctypes.byref(counters), counters.size)
        return int(counters.committed)

    return committed
