"""What proves a backend, and what proves its users. Needs the extra `testing`.

A suite of tests that every store must pass (`StoreConformance`), a machine that drives any store against
a dict (`StoreMachine`), and a store that fails when it is told to (`FaultyStore`, `FaultyBulkStore`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from offload.testing.conformance import StoreConformance
    from offload.testing.faults import FaultyBulkStore, FaultyStore
    from offload.testing.machine import StoreMachine

__all__ = ["FaultyBulkStore", "FaultyStore", "StoreConformance", "StoreMachine"]

# A failed assertion of the suite then shows its values, as in a test file.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("_bulk", "_listing", "_streams", "_suite", "conformance", "machine"))
)

# Loaded when first asked for: every pytest beside this package loads its plug-in, few need the rest.
_MODULES = {
    "FaultyBulkStore": "faults",
    "FaultyStore": "faults",
    "StoreConformance": "conformance",
    "StoreMachine": "machine",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
