"""The retrieval tools of a model: context_list, _read, _tail, _grep, _query and _diff."""

from offload.tools._tools import Tools
from offload.tools.references import References

__all__ = [
    "References",
    "Tools",
]
