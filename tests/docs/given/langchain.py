"""Definitions for the code of docs/frameworks/langchain.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.scripted import scripted, tool

model = scripted(scenario.whole_run())
another_model = scripted(scenario.whole_run())
third_model = scripted(scenario.Script([scenario.ask(), scenario.end]))
tools = [tool()]
