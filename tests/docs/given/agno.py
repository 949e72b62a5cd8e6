"""What docs/frameworks/agno.md takes as given: a model that follows a script, and its tool."""

from frameworks import scenario
from frameworks.agno_model import ScriptedModel, tool

model = ScriptedModel(scenario.whole_run())
another_model = ScriptedModel(scenario.whole_run())
tools = [tool()]
