"""Makes functions of the library raise: which of them run in a call, and one of them at a chosen call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import offload

_ROOT = str(Path(offload.__file__).parent)


class Broken(RuntimeError):  # noqa: N818 # what it stands for has no name that ends in "Error"
    """Raised in place of a call."""


def name_of(code: CodeType) -> str:
    module = code.co_filename.removeprefix(_ROOT).removesuffix(".py").strip("/").replace("/", ".")
    return f"{module}.{code.co_qualname}"


def arguments_of(frame: FrameType) -> str:
    """Return the arguments of a call as text."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
    return " ".join(_shown(frame.f_locals.get(name)) for name in names)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 # an object that is not yet initialized has no representation
        return ""


@contextmanager
def watched(seen: Callable[[FrameType], object]) -> Iterator[None]:
    """Call `seen` with the frame of each call of the library in this thread."""

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            seen(frame)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def raising(code: CodeType, when: Callable[[str], bool] | None = None) -> Iterator[None]:
    """Make a function raise: at each call whose arguments `when` chooses, or at its first call."""

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code and (when is None or when(arguments_of(frame))):
            raise Broken

    def set_again(*_: Any) -> None:
        # The interpreter drops a trace function that raised.
        if when is not None and sys.gettrace() is None:
            sys.settrace(trace)

    before = sys.gettrace()
    sys.settrace(trace)
    sys.setprofile(set_again)
    try:
        yield
    finally:
        sys.setprofile(None)
        sys.settrace(before)
