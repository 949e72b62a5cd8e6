"""What the model reads stored items back with: context_list, context_read, context_tail, context_grep."""

from offload.tools._definitions import definitions, system_prompt
from offload.tools._tools import Tools

__all__ = ["Tools", "definitions", "system_prompt"]
