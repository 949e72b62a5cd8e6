"""The retrieval tools of a model: context_list, context_read, context_tail, context_grep, context_diff."""

from offload.tools._tools import Tools
from offload.tools.references import References

__all__ = [
    "References",
    "Tools",
]
