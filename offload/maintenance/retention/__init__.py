"""Retention: time to live, quotas, pins, and the deletion of records by gc.

A record is deleted in two steps, so that no reader is interrupted. It is *marked for deletion* by a
tombstone: from then on no catalog lists it, and reading it raises `ExpiredError` with the reason. After the
grace period, unless it was pinned in time, its object is *emptied*: the bytes are deleted, but the key
remains taken. A stalled gc process, which acts long after its listing, is therefore harmless: an item that
was stored again meanwhile has the next generation of the key. Since not every store deletes an object only if
it is unchanged, tombstone and empty object remain while the session has records. After that gc raises the
floor of the session, and deletes them once every writer knows it: see `offload.records.index.floors`.

Every "now" is the store's clock. Every step may be repeated or interrupted; the next gc continues from the
state that a listing shows.
"""

from offload.maintenance.retention._collect import collect as collect
from offload.maintenance.retention._deletion import delete as delete, undelete as undelete
from offload.maintenance.retention._report import (
    GcReport as GcReport,
    StoreUsage as StoreUsage,
    store_usage as store_usage,
)
from offload.maintenance.retention.marks import pin as pin, touch as touch, unpin as unpin
