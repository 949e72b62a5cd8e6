"""Definitions for the code of docs/frameworks/haystack.md: scripted models and their tool."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"

from frameworks import scenario
from frameworks.haystack_model import ScriptedGenerator, tool

model = ScriptedGenerator(scenario.whole_run())
another_model = ScriptedGenerator(scenario.Script([scenario.ask(), scenario.end]))
tools = [tool()]
