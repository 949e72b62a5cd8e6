"""What docs/frameworks/strands.md takes as given: a model that follows a script, and its tool."""

from frameworks import scenario
from frameworks.strands_model import ScriptedModel, tool

model = ScriptedModel(scenario.whole_run())
tools = [tool()]
