"""Definitions for the code of docs/frameworks/crewai.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.crewai_model import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
