"""Definitions for the code of docs/frameworks/anthropic.md: a client of a server that follows a script."""

import threading

from anthropic import Anthropic
from anthropic.types.beta import BetaMemoryTool20250818CreateCommand as CreateCommand
from frameworks import scenario
from frameworks.anthropic_server import Server
from frameworks.scenario import report

__all__ = ["CreateCommand", "client", "definitions", "messages", "model", "report"]

_server = Server(scenario.Script([*scenario.whole_run().turns, scenario.end]))
threading.Thread(target=_server.serve_forever, daemon=True).start()
client = Anthropic(base_url=_server.url, api_key="x", max_retries=0)
model = "scripted"
definitions = [
    {"name": "query_sales", "description": "Sales.", "input_schema": {"type": "object", "properties": {}}}
]
messages = [{"role": "user", "content": "How did the sales go?"}]
