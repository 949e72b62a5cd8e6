"""Evidence for a text: the exact values in it, and where a session's messages and records have them."""

from offload.evidence._results import Evidence, Value

__all__ = ["Evidence", "Value"]
