"""Definitions for the code of docs/frameworks/agno.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.agno_model import ScriptedModel, tool

model = ScriptedModel(scenario.whole_run())
another_model = ScriptedModel(scenario.whole_run())
tools = [tool()]
