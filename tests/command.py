"""The command line, run in the process of a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from offload.__main__ import main


class Done(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `offload` with its arguments."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["offload", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        return Done(code, *capsys.readouterr())

    return run
