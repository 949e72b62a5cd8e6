"""Fixtures of all framework tests."""

from __future__ import annotations

import pytest
from frameworks import releases


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(releases.header())  # a quiet run has no header
