"""Gateways that wait for a store on a machine that is busy; tests of a slow store set their own deadlines."""

from __future__ import annotations

import pytest

from offload.gateway import _own_tools, _turns


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_turns, _own_tools):
        monkeypatch.setattr(module, "DEADLINE", 60.0)
