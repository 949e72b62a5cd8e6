"""Transfer of sessions between stores, names and files, and sharing of records."""

from offload.maintenance.transfer._archive import (
    export_session as export_session,
    import_session as import_session,
)
from offload.maintenance.transfer._copy import copy_session as copy_session, copy_sessions as copy_sessions
from offload.maintenance.transfer._fork import fork as fork, rewind as rewind
from offload.maintenance.transfer._report import (
    CopyFailure as CopyFailure,
    CopyProgress as CopyProgress,
    CopyReport as CopyReport,
)
from offload.maintenance.transfer._sharing import revoke as revoke, share as share, share_each as share_each
