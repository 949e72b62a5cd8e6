"""What docs/frameworks/pydantic_ai.md takes as given: a model that follows a script, and its tool."""

from frameworks import scenario
from frameworks.scripted_pydantic import ScriptedModel, tool

model = ScriptedModel(scenario.whole_run())
tools = [tool()]
