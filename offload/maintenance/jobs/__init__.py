"""Work on a whole store, shared among threads, processes or machines."""

from offload.maintenance.jobs.reindex import reindex as reindex
from offload.maintenance.jobs.verify import VerifyReport as VerifyReport, verify as verify
