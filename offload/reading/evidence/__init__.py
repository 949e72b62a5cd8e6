"""Evidence for a text: where a session's messages and records have its exact values."""

from offload.reading.evidence._results import Evidence, Value

__all__ = ["Evidence", "Value"]
