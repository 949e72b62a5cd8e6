"""Definitions for the code of docs/frameworks/agent_framework.md: a scripted client and its tool."""

from frameworks import scenario
from frameworks.agent_framework_model import ScriptedClient, tool

client = ScriptedClient(scenario.whole_run())
tools = [tool()]
