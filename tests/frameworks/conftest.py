"""Fixtures of all framework tests."""

from __future__ import annotations

import pytest

from offload_backends.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
