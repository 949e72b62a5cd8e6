"""Work on a whole store, shared among threads, processes or machines."""

from offload.jobs.reindex import reindex
from offload.jobs.verify import VerifyReport, verify

__all__ = [
    "VerifyReport",
    "reindex",
    "verify",
]
