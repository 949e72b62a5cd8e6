"""What the model reads stored items back with: context_list, context_read, context_tail, context_grep."""

from offload.tools._answers import MAX_ANSWER_CHARS
from offload.tools._definitions import TOOL_NAMES, definitions, system_prompt
from offload.tools._tools import Tools

__all__ = ["MAX_ANSWER_CHARS", "TOOL_NAMES", "Tools", "definitions", "system_prompt"]
