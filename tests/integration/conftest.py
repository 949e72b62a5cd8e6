"""A bucket; gateways that wait for a store on a busy machine: tests of a slow store set their deadlines."""

from __future__ import annotations

import pytest
from servers import Bucket

from offload.gateway import _own_tools, _turns


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_turns, _own_tools):
        monkeypatch.setattr(module, "DEADLINE", 60.0)


@pytest.fixture
def bucket(s3_bucket: Bucket) -> Bucket:
    return s3_bucket
