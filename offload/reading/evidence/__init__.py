"""Evidence for a text: where a session's messages and records have its exact values."""

from offload.reading.evidence._results import Evidence as Evidence, Value as Value
