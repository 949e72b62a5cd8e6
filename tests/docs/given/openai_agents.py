"""What docs/frameworks/openai_agents.md takes as given: a model that follows a script, and its tool."""

from frameworks import scenario
from frameworks.scripted_openai import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
