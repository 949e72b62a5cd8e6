"""Work on a whole store, shared among threads, processes or machines."""

from offload.maintenance.jobs.reindex import reindex
from offload.maintenance.jobs.verify import VerifyReport, verify

__all__ = [
    "VerifyReport",
    "reindex",
    "verify",
]
