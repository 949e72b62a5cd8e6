"""Definitions for the code of docs/frameworks/pydantic_ai.md: a scripted model and its tool."""

from frameworks import scenario
from frameworks.scripted_pydantic import ScriptedModel, tool

model = ScriptedModel(scenario.whole_run())
tools = [tool()]
