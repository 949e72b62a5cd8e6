"""The retrieval tools of a model: context_list, _read, _tail, _grep, _query and _diff."""

from offload.reading.tools._tools import Tools

__all__ = ["Tools"]
