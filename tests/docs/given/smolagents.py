"""Definitions for the code of docs/frameworks/smolagents.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.smolagents_model import ScriptedModel, tool

model = ScriptedModel(scenario.whole_run())
tools = [tool()]
