"""The journal of a session: its requests as they were sent, stored next to its records.

`Offloader(journal=True)` and `ContextManager` write one; `timeline()` of both returns a `Timeline`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload.reading.timeline.timeline import Change, SentRequest, Timeline

__all__ = ["Change", "SentRequest", "Timeline"]


# A list of sessions needs their titles alone.
def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("offload.reading.timeline.timeline"), name)
    raise AttributeError(f"module 'offload.reading.timeline' has no attribute {name!r}")
