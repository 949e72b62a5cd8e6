"""The journal of a session: its requests as they were sent, stored next to its records.

`Offloader(journal=True)` and `ContextManager` write one; `timeline()` of both returns a `Timeline`.
"""

from offload.reading.timeline.timeline import Change, SentRequest, Timeline

__all__ = ["Change", "SentRequest", "Timeline"]
