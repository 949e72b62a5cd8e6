"""Checks of a store: every guarantee of the store contract, and its speed, tested on the store.

The checks write under random keys and delete these objects afterwards.
"""

from offload.maintenance.doctor._diagnose import diagnose
from offload.maintenance.doctor._trial import CheckOutcome, Finding

__all__ = ["CheckOutcome", "Finding", "diagnose"]
