"""Checks of a store: every guarantee of the store contract, and its speed, tested on the store.

The checks write under random keys and delete these objects afterwards.
"""

from offload.maintenance.doctor._diagnose import diagnose as diagnose
from offload.maintenance.doctor._trial import Finding as Finding
