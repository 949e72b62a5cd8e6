"""Tests of stores and of code that uses stores. Needs the extra `testing`.

`StoreConformance` is the suite that every store must pass, `StoreMachine` compares a store with a dict under
random operations, `FaultyStore` and `FaultyBulkStore` fail on demand.
"""

from offload.errors import needs_extra

with needs_extra("testing"):
    import hypothesis  # noqa: F401  # a part of the suite needs it
    import pytest

# A failed assertion of the suite then shows its values, as in a test file.
pytest.register_assert_rewrite(f"{__name__}.conformance", f"{__name__}.machine")

from offload.testing.conformance import StoreConformance  # noqa: E402  # only imports after the registration are rewritten
from offload.testing.faults import FaultyBulkStore, FaultyStore  # noqa: E402  # only imports after the registration are rewritten
from offload.testing.machine import StoreMachine  # noqa: E402  # only imports after the registration are rewritten

__all__ = ["FaultyBulkStore", "FaultyStore", "StoreConformance", "StoreMachine"]
