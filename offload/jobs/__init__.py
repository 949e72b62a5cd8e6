"""Work on a whole store, shared among threads, processes or machines."""

from offload.jobs.chain import ChainFinding, ChainReport, verify_chain
from offload.jobs.reindex import reindex
from offload.jobs.verify import VerifyReport, verify

__all__ = [
    "ChainFinding",
    "ChainReport",
    "VerifyReport",
    "reindex",
    "verify",
    "verify_chain",
]
