"""Definitions for the code of docs/frameworks/deepagents.md: scripted models and their tool."""

from frameworks import scenario
from frameworks.scripted import scripted, tool

model = scripted(scenario.Script([scenario.ask(), scenario.end]))
other_model = scripted(scenario.whole_run())
tools = [tool()]
