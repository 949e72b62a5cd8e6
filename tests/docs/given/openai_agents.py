"""Definitions for the code of docs/frameworks/openai_agents.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.scripted_openai import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
