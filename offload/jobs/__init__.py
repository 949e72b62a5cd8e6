"""Work on a whole store, shared among threads, processes or machines."""

from offload.jobs.verify import VerifyReport, verify

__all__ = [
    "VerifyReport",
    "verify",
]
