"""What docs/frameworks/langchain.md takes as given: a model that follows a script, and its tool."""

from frameworks import scenario
from frameworks.scripted import scripted, tool

model = scripted(scenario.whole_run())
another_model = scripted(scenario.whole_run())
tools = [tool()]
