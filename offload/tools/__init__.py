"""The retrieval tools of a model: context_list, context_read, context_tail, context_grep, context_diff."""

from offload.policy import RETRIEVAL_TOOLS, TOOL_NAMES
from offload.tools._answers import MAX_ANSWER_CHARS, error_for_model
from offload.tools._arguments import parse_arguments
from offload.tools._budget import BUDGET, Budget, BudgetExceeded
from offload.tools._pointer import CONTAINERS, PointerReader
from offload.tools._references import (
    MAX_REFERENCE_CHARS,
    References,
    check_fields,
    only_tool,
    reference_prompt,
)
from offload.tools._sources import CallKey, Sources
from offload.tools._tools import Tools

__all__ = [
    "BUDGET",
    "CONTAINERS",
    "MAX_ANSWER_CHARS",
    "MAX_REFERENCE_CHARS",
    "RETRIEVAL_TOOLS",
    "TOOL_NAMES",
    "Budget",
    "BudgetExceeded",
    "CallKey",
    "PointerReader",
    "References",
    "Sources",
    "Tools",
    "check_fields",
    "error_for_model",
    "only_tool",
    "parse_arguments",
    "reference_prompt",
]
