"""What proves a backend, and what proves its users. Needs the extra `testing`.

A suite of tests that every store must pass (`StoreConformance`), a machine that drives any store against
a dict (`StoreMachine`), and a store that fails when it is told to (`FaultyStore`, `FaultyBulkStore`).
"""

from __future__ import annotations

import pytest

# Before the import: a failed assertion of the suite then shows its values, as in a test file.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("_bulk", "_listing", "_suite", "conformance", "machine"))
)

from offload.testing.conformance import StoreConformance  # noqa: E402  # see above
from offload.testing.faults import FaultyBulkStore, FaultyStore  # noqa: E402  # the same
from offload.testing.machine import StoreMachine  # noqa: E402  # the same

__all__ = ["FaultyBulkStore", "FaultyStore", "StoreConformance", "StoreMachine"]
