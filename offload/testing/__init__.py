"""What proves a backend: a suite of tests that every store must pass. Needs the extra `testing`."""

from __future__ import annotations

import pytest

# Before the import: a failed assertion of the suite then shows its values, as in a test file.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("_bulk", "_listing", "_suite", "conformance"))
)

from offload.testing.conformance import StoreConformance  # noqa: E402  # see above

__all__ = ["StoreConformance"]
