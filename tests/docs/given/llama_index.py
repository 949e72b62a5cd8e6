"""Definitions for the code of docs/frameworks/llama_index.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.llama_index_model import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
