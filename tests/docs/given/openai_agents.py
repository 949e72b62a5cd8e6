"""Definitions for the code of docs/frameworks/openai_agents.md: scripted models and their tools."""

from dataclasses import replace

from frameworks import scenario
from frameworks.scripted_openai import scripted, tool

model = scripted(scenario.whole_run())
tools = [tool()]
calls = [scenario.Call(scenario.QUERY, {}, "call_1"), scenario.Call("send_mail", {}, "call_2")]
another_model = scripted(scenario.Script([lambda _: calls, scenario.end]))
send_mail = replace(tool("send_mail", returns=lambda: "Sent."), needs_approval=True)
