"""The command line, run in the process of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from offload.__main__ import main

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `offload` with its arguments."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["offload", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        # Its options become variables for the rest of its process.
        with patch.dict(os.environ):
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
        return Done(sys.argv, code, *capsys.readouterr())

    return run


def is_one_line_from_us(said: str) -> bool:
    """Return whether a text on stderr is one line of the library."""
    return said.startswith("offload: ") and said.count("\n") == 1
