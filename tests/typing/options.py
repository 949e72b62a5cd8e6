"""Misspelt or mistyped options fail under mypy; each `type: ignore` is the proof. Never run."""

from __future__ import annotations

from offload import ContextFileSystem, Offloader, OffloadPolicy
from offload.integrations import (
    agent_framework,
    agno,
    anthropic,
    crewai,
    google_adk,
    haystack,
    langchain,
    llama_index,
    openai_agents,
    pydantic_ai,
    smolagents,
    strands,
)

off = Offloader("memory://", policy=OffloadPolicy())
Offloader("memory://", polcy=OffloadPolicy())  # type: ignore[call-arg]
off.with_options(session="other", on_error="raise")
off.with_options(polcy=OffloadPolicy())  # type: ignore[call-arg]
Offloader.from_config(store="memory://", redact=str.upper)
Offloader.from_config(polcy=OffloadPolicy())  # type: ignore[call-arg]

langchain.OffloadMiddleware("memory://", policy=OffloadPolicy(), on_error="raise")
langchain.OffloadMiddleware("memory://", polcy=3)  # type: ignore[call-arg]
langchain.OffloadMiddleware("memory://", policy=3)  # type: ignore[arg-type]
agent_framework.OffloadProvider("memory://", polcy=3)  # type: ignore[call-arg]
agno.OffloadTools("memory://", polcy=3)  # type: ignore[call-arg]
anthropic.AsyncOffloadMemory("memory://", session="u", polcy=3)  # type: ignore[call-arg]
crewai.OffloadCrew("memory://", polcy=3)  # type: ignore[call-arg]
google_adk.AdkOffloadPlugin("memory://", polcy=3)  # type: ignore[call-arg]
haystack.OffloadToolset("memory://", polcy=3)  # type: ignore[call-arg]
llama_index.OffloadContexts("memory://", polcy=3)  # type: ignore[call-arg]
openai_agents.OffloadRuns("memory://", polcy=3)  # type: ignore[call-arg]
pydantic_ai.OffloadCapability("memory://", polcy=3)  # type: ignore[call-arg]
smolagents.OffloadSteps("memory://", polcy=3)  # type: ignore[call-arg]
strands.StrandsOffloadPlugin("memory://", polcy=3)  # type: ignore[call-arg]

ContextFileSystem(redact=str.upper)
ContextFileSystem(redcat=str.upper)  # type: ignore[call-arg]
ContextFileSystem(policy=OffloadPolicy())
ContextFileSystem(policy=3)  # type: ignore[arg-type]
