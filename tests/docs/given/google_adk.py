"""Definitions for the code of docs/frameworks/google_adk.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.adk_model import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
