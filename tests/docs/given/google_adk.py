"""What docs/frameworks/google_adk.md takes as given: a model that follows a script, and its tool."""

from frameworks import scenario
from frameworks.adk_model import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
