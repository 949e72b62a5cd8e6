"""What is kept for how long: expiry, quotas, pins, and the collection of records.

A record goes in two steps, so that nobody is cut off. It is *marked* by a tombstone beside it: from then on
no catalog lists it, and whoever opens it is told why it went. When the grace is over, and no pin was found
that had come in between, it is *emptied*: its object stays without a byte, so its key stays taken. That is
what makes a stalled collector harmless, who acts long after it looked: the item may have been stored again
by then, but under the next generation of its key. Tombstone and empty object stay for good, since no store
deletes an object only if it is still the one that was looked at.

Every "now" is the store's clock, and every step may be done twice or be left off anywhere: the next
collection goes on from what a listing shows.
"""

from offload.retention._clock import store_time
from offload.retention._collect import collect, delete
from offload.retention._marks import Marks, pin, read_marks, touch, unpin
from offload.retention._report import GcReport, Usage, usage

__all__ = [
    "GcReport",
    "Marks",
    "Usage",
    "collect",
    "delete",
    "pin",
    "read_marks",
    "store_time",
    "touch",
    "unpin",
    "usage",
]
